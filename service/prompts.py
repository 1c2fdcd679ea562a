"""From a request's prompt to token ids: chat template, passages, raw text."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import tokenizers
from transformers import PreTrainedTokenizerBase

from refdraft.errors import InvalidRequestError
from refdraft.service.types import GenerateRequest, Message, Passage

_PASSAGES_TEMPLATE = "Use these passages to answer.\n\n{passages}\n\n{prompt}"


class PromptEncoder:
    """Encodes prompts for one target.

    Args:
        tokenizer: the target's tokenizer as transformers loads it, with its chat template if it has one.
        vocabulary_size: ids from here on are not known to the target.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary_size: int) -> None:
        self._tokenizer, self._vocabulary_size = tokenizer, vocabulary_size
        backend: tokenizers.Tokenizer = tokenizer.backend_tokenizer
        added = backend.get_added_tokens_decoder().values()
        self._control_tokens = [token.content for token in added if token.special]
        self._plain = tokenizers.Tokenizer.from_str(backend.to_str())
        self._plain.encode_special_tokens = True  # "<|im_end|>" is ten characters like any others

    def encode(self, request: GenerateRequest, passages: Sequence[Passage] = ()) -> list[int]:
        """Token ids of the request's prompt, with `passages` placed before its text or its last user turn.

        Only a raw prompt may hold the target's control tokens; anywhere else, in passages above all, what looks
        like one is text.

        Raises:
            InvalidRequestError: a chat for a target without a chat template, a role that the template refuses,
                passages for token ids, or an id beyond the vocabulary.
        """
        ids = self._encode(request, passages)
        highest = max(ids, default=0)
        if highest >= self._vocabulary_size:  # of text, too: a tokenizer may know more than the target
            token = self._tokenizer.convert_ids_to_tokens(highest)
            raise InvalidRequestError(
                f"token id {highest}{f' ({token!r})' if token else ''} is beyond the target's vocabulary of"
                f" {self._vocabulary_size}: leave it out",
                field="prompt",
            )
        return ids

    def _encode(self, request: GenerateRequest, passages: Sequence[Passage]) -> list[int]:
        prompt = request.prompt
        if isinstance(prompt, str):
            text = place_passages(prompt, passages)
            if request.raw:
                return self._some(cast("list[int]", self._tokenizer(text)["input_ids"]))
            if self._tokenizer.chat_template is None:
                return self._some(self._plain.encode(text).ids)
            return self._encode_chat([Message(role="user", content=text)])
        if isinstance(prompt[0], Message):
            turns = list(cast("Sequence[Message]", prompt))
            if passages:
                last = _last_user_turn(turns)
                turns[last] = replace(turns[last], content=place_passages(turns[last].content, passages))
            return self._encode_chat(turns)
        if passages:
            raise InvalidRequestError(
                "passages cannot be placed into token ids: use draft_only, or send text", field="retrieval.placement"
            )
        return list(cast("Sequence[int]", prompt))

    @staticmethod
    def _some(ids: list[int]) -> list[int]:
        if not ids:
            raise InvalidRequestError("holds no token", field="prompt")
        return ids

    def _encode_chat(self, turns: Sequence[Message]) -> list[int]:
        """Render the chat template; what looks like a control token inside a turn stays text."""
        if self._tokenizer.chat_template is None:
            raise InvalidRequestError("the target has no chat template: send raw text or token ids", field="prompt")
        if any(token in turn.role for turn in turns for token in self._control_tokens):
            raise InvalidRequestError("a role holds a control token of the target", field="prompt")
        if not any(token in turn.content for turn in turns for token in self._control_tokens):
            return self._encode_rendered(self._render(turns))
        mark = secrets.token_hex(16)
        marked = [replace(turn, content=f"{mark}{number}{mark}") for number, turn in enumerate(turns)]
        ids: list[int] = []
        for number, piece in enumerate(self._render(marked).split(mark)):
            # Every second piece is the number of a turn, the others are the template's own text.
            ids += self._encode_plain(turns[int(piece)].content) if number % 2 else self._encode_rendered(piece)
        return ids

    def _render(self, turns: Sequence[Message]) -> str:
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            return cast(
                "str", self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            )
        except Exception as error:  # a template is a program of its own and raises what it likes
            raise InvalidRequestError(f"the target's chat template refuses it: {error}", field="prompt") from error

    def _encode_rendered(self, text: str) -> list[int]:
        return cast("list[int]", self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _encode_plain(self, text: str) -> list[int]:
        return self._plain.encode(text, add_special_tokens=False).ids


def place_passages(prompt: str, passages: Sequence[Passage]) -> str:
    """The prompt behind its passages, best first, each under its title; the prompt alone without any."""
    if not passages:
        return prompt
    texts = (f"{passage.title}\n{passage.text}" if passage.title else passage.text for passage in passages)
    return _PASSAGES_TEMPLATE.format(passages="\n\n".join(texts), prompt=prompt)


def _last_user_turn(turns: Sequence[Message]) -> int:
    for index in range(len(turns) - 1, -1, -1):
        if turns[index].role == "user":
            return index
    raise InvalidRequestError("the chat holds no user turn to retrieve for", field="prompt")
