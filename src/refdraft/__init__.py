"""refdraft: lossless speculative decoding that drafts from reference text.

Importing it is light: what needs grpc, numpy or torch is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from refdraft.errors import (
    DeadlineExceededError,
    IndexFormatError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PreconditionError,
    RefdraftError,
    SourceFormatError,
    UnavailableError,
)
from refdraft.service.types import (
    Attribution,
    Completion,
    Delta,
    Drafting,
    DraftingStatistics,
    GenerateRequest,
    IndexInfo,
    Message,
    ModelInfo,
    Passage,
    Reference,
    Retrieval,
    Sampling,
    SourceStatistics,
    Structure,
    TokenLogprob,
    TopLogprob,
    Usage,
)

if TYPE_CHECKING:
    from refdraft.retriever.index import Index
    from refdraft.service.client import Client
    from refdraft.service.config import PipelineConfig
    from refdraft.service.pipeline import Pipeline

    __version__: str

__all__ = [
    "Attribution",
    "Client",
    "Completion",
    "DeadlineExceededError",
    "Delta",
    "Drafting",
    "DraftingStatistics",
    "GenerateRequest",
    "Index",
    "IndexFormatError",
    "IndexInfo",
    "InvalidRequestError",
    "Message",
    "ModelInfo",
    "NotFoundError",
    "OverloadedError",
    "Passage",
    "Pipeline",
    "PipelineConfig",
    "PreconditionError",
    "RefdraftError",
    "Reference",
    "Retrieval",
    "Sampling",
    "SourceFormatError",
    "SourceStatistics",
    "Structure",
    "TokenLogprob",
    "TopLogprob",
    "UnavailableError",
    "Usage",
    "__version__",
]

_LAZY = {
    "Client": "refdraft.service.client",
    "Index": "refdraft.retriever.index",
    "Pipeline": "refdraft.service.pipeline",
    "PipelineConfig": "refdraft.service.config",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("refdraft")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'refdraft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
