"""How a pipeline loads and runs its target."""

from dataclasses import dataclass, field
from typing import Literal

from refdraft.errors import InvalidRequestError
from refdraft.service.validation import Limits

Numerics = Literal["auto", "strict", "fast"]
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """Validated once, at construction.

    Attributes:
        slots: requests decoded at once.
        queue_limit: requests that may wait for a slot; one more is refused.
        context_limit: tokens of prompt and output together; None takes the model's own limit, 4096 at most.
        dtype: type of the weights; "auto" is float32 on a CPU and bfloat16 elsewhere.
        device: where the target runs; "auto" takes a GPU where torch finds one.
        threads: CPU threads of the target; None leaves torch's own choice.
        numerics: "strict" gives bit-identical logits with and without drafts, "fast" the cheapest passes;
            "auto" is strict for 16-bit weights and fast for float32.
        min_attribution_tokens: a copied span of fewer tokens is not reported.
        max_reference_tokens: tokens of references and passages that one request drafts from; what comes later
            in rank is left out, which can only change the speed.
        draft_model: a checkpoint folder or hub name of a small model with the target's tokenizer, which is asked too
            what may come next; None asks none.
        history_tokens: tokens of past outputs that are drafted from, the newest; 0 keeps none. Callers are not told
            apart yet, so turn it on only where all of them may know what was answered.
        history_lifetime_s: seconds until a past output is forgotten.
        limits: what a single request may ask for.
    """

    slots: int = 4
    queue_limit: int = 64
    context_limit: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    numerics: Numerics = "auto"
    min_attribution_tokens: int = 4
    max_reference_tokens: int = 131_072
    draft_model: str | None = None
    history_tokens: int = 0
    history_lifetime_s: float = 3600.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        _require(1 <= self.slots <= 1024, "slots", f"must be in 1..1024, not {self.slots}")
        _require(self.queue_limit >= 0, "queue_limit", f"must not be negative, as {self.queue_limit} is")
        _require(self.context_limit is None or self.context_limit >= 2, "context_limit", "must be at least 2")
        _require(
            0 <= self.history_tokens <= 1 << 20, "history_tokens", f"must be in 0..{1 << 20}, not {self.history_tokens}"
        )
        _require(self.history_lifetime_s > 0, "history_lifetime_s", f"must be above 0, not {self.history_lifetime_s}")
        _require(self.dtype in DTYPES, "dtype", f"must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        _require(self.threads is None or self.threads >= 1, "threads", f"must be at least 1, not {self.threads}")
        _require(
            self.numerics in ("auto", "strict", "fast"),
            "numerics",
            f"must be auto, strict or fast, not {self.numerics!r}",
        )


def _require(condition: bool, name: str, message: str) -> None:
    if not condition:
        raise InvalidRequestError(message, field=name)
