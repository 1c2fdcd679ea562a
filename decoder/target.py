"""The target model and its KV cache: the only file that knows the insides of transformers' models.

Written for transformers 5.24. What it relies on: `forward(input_ids, attention_mask, position_ids, cache,
logits_to_keep)`, a 4-D mask that is passed through to the attention function whatever its shape, and a `Cache` made of
`CacheLayerMixin` layers whose `update` decides what the attention sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import linear, pad, scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.moe import ExpertsInterface
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

from refdraft.decoder.activations import align_activations, aligned
from refdraft.decoder.batch import Batch, Row, round_up
from refdraft.decoder.checkpoint import choose_context_limit, load_weights, read_config
from refdraft.decoder.packed import pack_linears

_ATTENTION = "refdraft_packed"
_EXPERTS = "refdraft_blocks"
_BLOCK = 16  # tokens; the width of a strict pass with one slot
_LINES = 4  # queries; in multiples of it torch's attention on a CPU gives each the same bits whatever others there are


@dataclass(slots=True)
class _Window:
    """The part of the cache that the pass under way reads and writes."""

    rows: slice
    starts: torch.Tensor  # int64 [rows]
    width: int
    cells: int
    certain: int  # see Batch
    raw: list[torch.Tensor] = field(default_factory=list)  # all layers' keys and values, where none is certain

    def contain(self, states: torch.Tensor) -> torch.Tensor:
        """`states` ([rows, heads, width, head size]) with zeros for what is not finite in uncertain columns.

        A mask alone does not keep a NaN from the neighbours, nor from later passes over the cells left behind:
        a masked score of NaN is NaN, and a weight of 0 times NaN is NaN. Zeros, since a large finite number in
        place of an infinity could make a score overflow. Finite states keep their bits.
        """
        finite = states.nan_to_num(0.0, 0.0, 0.0)
        if self.certain:
            finite[:, :, : self.certain] = states[:, :, : self.certain]
        else:
            self.raw.append(states)
        return finite

    def broken(self) -> torch.Tensor:
        """Tokens of which some key or value was not finite: bool [rows, width]; only where none is certain."""
        return ~torch.stack(self.raw).isfinite().all(4).all(2).all(0)

    def write(self, store: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Put `states` ([rows, heads, width, head size]) in a layer's cells, and return all that the rows may see."""
        rows = store[self.rows]
        states = self.contain(states)
        if len(states) == 1:
            start = int(self.starts[0])
            rows[:, :, start : start + self.width] = states
        else:
            cells = self.starts[:, None] + torch.arange(self.width, device=store.device)
            index = torch.arange(len(states), device=store.device)[:, None]
            rows[index, :, cells] = states.transpose(1, 2)
        return rows[:, :, : self.cells]


class _Store:
    """Keys and values of all layers, each [layers, slots, heads, cells, head size], written in place.

    One tensor each serves because every verified family gives all its layers one shape. Layers with a sliding
    window keep all cells too, and the mask alone forgets: in a ring, a rejected draft would have overwritten
    tokens that are still within the window.
    """

    def __init__(self, layers: int, slots: int, cells: int) -> None:
        self.layers, self.slots, self.cells = layers, slots, cells
        self.tensors: tuple[torch.Tensor, ...] = ()  # keys and values, once the first pass has shown their shape
        self.window: _Window | None = None

    def allocate(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Zeros: a masked cell has weight 0, but 0 times the NaN that memory may hold is NaN."""
        self.tensors = tuple(
            states.new_zeros(self.layers, self.slots, states.shape[1], self.cells, states.shape[3])
            for states in (key_states, value_states)
        )


class _SlotLayer(CacheLayerMixin):
    """One layer of the store, as transformers sees it."""

    is_sliding = False

    def __init__(self, store: _Store, index: int) -> None:
        super().__init__()
        self._store, self._index = store, index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Take this layer's views of the store."""
        if not self._store.tensors:
            self._store.allocate(key_states, value_states)
        self.keys, self.values = (tensor[self._index] for tensor in self._store.tensors)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values, and return all that its rows may attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self._store.window
        assert window is not None
        assert self.keys is not None
        assert self.values is not None
        return window.write(self.keys, key_states), window.write(self.values, value_states)

    def get_seq_length(self) -> int:
        """Unused: positions and mask are always given."""
        return 0

    def get_max_length(self) -> int:
        """Cells of a slot."""
        return self._store.cells

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Unused: the mask is always given."""
        return query_length, 0


def _packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [rows, query heads, width, head size]
    key: torch.Tensor,  # [rows, key heads, cells, head size]
    value: torch.Tensor,
    attention_mask: torch.Tensor,  # [rows, 1, group * width, cells], see Target._additive
    scaling: float,
    softcap: float | None = None,
    **kwargs: Any,  # among them sliding_window, which the mask knows
) -> tuple[torch.Tensor, None]:
    """Attention in which the query heads of one key head share a block of rows.

    Repeating the keys for each query head would copy the whole cache at every layer of every pass. Blocks are
    padded as `_additive` pads the mask.
    """
    rows, heads, width, size = query.shape
    packed = query.reshape(rows, key.shape[1], -1, size)
    lines = packed.shape[2]
    packed = pad(packed, (0, 0, 0, -lines % _LINES))
    if softcap is None:
        output = scaled_dot_product_attention(packed, key, value, attn_mask=attention_mask, scale=scaling)
    else:
        scores = packed.float() @ key.float().transpose(2, 3) * scaling
        scores = aligned(torch.tanh, scores / softcap) * softcap + attention_mask
        output = scores.softmax(-1).to(value.dtype) @ value
    return output[:, :, :lines].reshape(rows, heads, width, size).transpose(1, 2), None


def _experts_in_blocks(
    module: Any,
    hidden_states: torch.Tensor,  # [tokens, hidden size]
    top_k_index: torch.Tensor,  # int64 [tokens, k]
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """A mixture of experts whose products all have one shape, so that a token's bits depend on no other token.

    Of transformers' own, "eager" and "grouped_mm" multiply all tokens of an expert at once, in a shape that the
    neighbours and the draft decide; "batched_mm" copies the expert's weights for every token, more than memory
    holds in a prefill. The price here: the last block of every expert is padded, and a prefill multiplies in more
    and smaller steps.
    """
    result = torch.zeros_like(hidden_states)
    for expert in top_k_index.unique():
        tokens, choices = torch.where(top_k_index == expert)
        padded = pad(hidden_states[tokens], (0, 0, 0, -len(tokens) % _BLOCK))
        blocks = [
            linear(module._apply_gate(linear(block, module.gate_up_proj[expert])), module.down_proj[expert])
            for block in padded.split(_BLOCK)
        ]
        outputs = torch.cat(blocks)[: len(tokens)] * top_k_weights[tokens, choices, None]
        result.index_add_(0, tokens, outputs.to(result.dtype))
    return result


def _linear_with_one_output(module: torch.nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """The layer as a product of matrices: one with a vector, which CPUs would run, has bits that mind the row."""
    weight = pad(module.weight, (0, 0, 0, 15))
    output = linear(states, weight)[..., :1]
    return output if module.bias is None else output + module.bias


def _alibi(positions: torch.Tensor, mask: torch.Tensor, heads: int, dtype: torch.dtype) -> torch.Tensor:
    """Bloom's biases by the position of the token in each cell (int64 [rows, cells]), which Bloom counts itself.

    Returns:
        [rows * heads, 1, cells]
    """
    slopes = _get_alibi_slopes(heads, mask.device)
    biases = slopes[:, None] * positions.to(mask.device)[:, None]
    return biases.flatten(0, 1)[:, None].to(dtype)


AttentionInterface.register(_ATTENTION, _packed_attention)
ExpertsInterface.register(_EXPERTS, _experts_in_blocks)


class Target:
    """A causal language model with a KV cache of `slots` rows.

    Args:
        model: a transformers model in evaluation mode that was loaded as in `load`.
        slots: rows of the KV cache.
        context_limit: tokens a slot can hold, prompt and output together.
        max_width: widest decode pass, which the cache leaves room for behind the limit.
    """

    def __init__(self, model: PreTrainedModel, *, slots: int, context_limit: int, max_width: int) -> None:
        align_activations(model)
        self.model = model
        self.slots, self.context_limit, self.max_width = slots, context_limit, max_width
        self.cells = round_up(context_limit + max_width)
        self.vocabulary_size: int = model.get_output_embeddings().weight.shape[0]
        layers: int = model.config.num_hidden_layers
        # Query heads that share a key head, by the attention modules' own count; where they keep none, none share.
        groups = (getattr(module, "num_key_value_groups", None) for module in model.modules())
        self._group: int = next(filter(None, groups), 1)
        self._lines = 1 if model.config.model_type == "bloom" else _LINES
        self._store = _Store(layers, slots, self.cells)
        self._cache = Cache(layers=[_SlotLayer(self._store, index) for index in range(layers)])

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        slots: int,
        context_limit: int | None,
        max_width: int,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> "Target":
        """Load a checkpoint folder or hub name; `trust_remote_code` stays off.

        Raises:
            NotFoundError: nothing loadable is there.
            PreconditionError: the model cannot be decoded with drafts, or was not verified to be.
            InvalidRequestError: the context limit is beyond what the model can hold.
        """
        config = read_config(model)
        limit = choose_context_limit(config, context_limit)
        # Bloom's attention is its own; `run` gives it the positions that it would count by itself.
        attention = "eager" if config.model_type == "bloom" else _ATTENTION
        loaded = load_weights(model, dtype=dtype, attention=attention, experts=_EXPERTS)
        loaded.eval().to(device)
        for module in loaded.modules():
            if isinstance(module, torch.nn.Linear) and module.out_features == 1:  # the shared gate of Qwen2-MoE
                module.forward = partial(_linear_with_one_output, module)  # type: ignore[method-assign]
        pack_linears(loaded)
        return cls(loaded, slots=slots, context_limit=limit, max_width=max_width)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an output, by the checkpoint's generation config, else by its config."""
        for config in (self.model.generation_config, self.model.config):
            ids = getattr(config, "eos_token_id", None)
            if ids is not None:
                return frozenset([ids] if isinstance(ids, int) else ids)
        return frozenset()

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type."""
        return self.model.dtype

    @torch.inference_mode()
    def run(self, batch: Batch, *, last_only: int | None = None) -> torch.Tensor:
        """One forward pass; the batch's keys and values are written to the cache.

        Args:
            batch: the inputs.
            last_only: compute logits of this one column only (prefill needs no others).

        Returns:
            float32 [rows, width, vocabulary], or [rows, 1, vocabulary] with `last_only`. A token of which some
            key or value is not finite has NaN throughout, so that choosing it fails whatever is drafted.
        """
        rows, width = batch.tokens.shape
        device = self.device
        window = _Window(
            slice(batch.first_slot, batch.first_slot + rows),
            torch.from_numpy(batch.starts).to(device),
            width,
            batch.mask.shape[2],
            batch.certain,
        )
        self._store.window = window
        if self.model.config.model_type == "bloom":
            bloom: Any = self.model.base_model
            bloom.build_alibi_tensor = partial(_alibi, torch.from_numpy(batch.cell_positions()))
        output = self.model(
            input_ids=torch.from_numpy(batch.tokens).to(device),
            position_ids=torch.from_numpy(batch.positions).to(device),
            attention_mask=self._masks(batch),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=0 if last_only is None else torch.tensor([last_only], device=device),
        )
        logits: torch.Tensor = output.logits.float()
        if not batch.certain and (broken := window.broken()).any():
            logits[broken] = torch.nan
        return logits

    def _masks(self, batch: Batch) -> torch.Tensor | dict[str, torch.Tensor]:
        """The masks of a pass: by the kind of layer where a family may mix them, else that of all layers.

        What a family knows is asked of its configuration's class; an instance may hold what the model ignores.
        """
        config = self.model.config
        if not hasattr(type(config), "layer_types"):
            window = config.sliding_window if hasattr(type(config), "sliding_window") else None
            return self._additive(batch.mask_within(window) if window else batch.mask)
        masks = {"full_attention": self._additive(batch.mask)}
        if "sliding_attention" in config.layer_types:
            masks["sliding_attention"] = self._additive(batch.mask_within(config.sliding_window))
        return masks

    def _additive(self, visible: NDArray[np.bool_]) -> torch.Tensor:
        """A mask ([rows, width, cells]) as attention adds it to the scores, made once a pass and not in every layer.

        Returns:
            0 or -inf in the weights' type, [rows, 1, lines, cells]: the query heads that share a key head lie side by
            side, see `_packed_attention`, and behind them padding, which sees all.
        """
        hidden = ~torch.from_numpy(visible).to(self.device)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, -torch.inf)
        mask = mask.repeat(1, self._group, 1)[:, None]
        return pad(mask, (0, 0, 0, -mask.shape[2] % self._lines))

    @torch.inference_mode()
    def keep(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Close up the cells of an accepted path of a tree.

        Args:
            slot: the row of the cache.
            start: the cell of the pass's first token.
            path: columns of the pass that were accepted behind the first, ascending.
        """
        if list(path) == list(range(1, len(path) + 1)):
            return
        source = torch.tensor(path, device=self.device) + start
        goal = slice(start + 1, start + 1 + len(path))
        for tensor in self._store.tensors:
            tensor[:, slot, :, goal] = tensor[:, slot, :, source]

    @torch.inference_mode()
    def copy(self, source_slot: int, goal_slot: int, length: int) -> None:
        """Copy the first `length` cells of a row: several samples of one prompt share one prefill."""
        for tensor in self._store.tensors:
            tensor[:, goal_slot, :, :length] = tensor[:, source_slot, :, :length]

    @torch.inference_mode()
    def scramble(self, cells: int) -> None:
        """Put random keys and values, the same in each slot, in the first cells: a cache in use, for trials."""
        if not self._store.tensors:
            self.run(Batch.decode(0, [Row(0, 0)], width=1, cells=1, last_position=0))
        for tensor in self._store.tensors:
            tensor[:, 0, :, :cells].normal_(generator=torch.Generator(tensor.device).manual_seed(0))
            tensor[:, 1:, :, :cells] = tensor[:, :1, :, :cells]

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Zero a row of the cache: a NaN that a failed request left would spread, as 0 times NaN is NaN."""
        for tensor in self._store.tensors:
            tensor[:, slot] = 0
