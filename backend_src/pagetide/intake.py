"""A parsed request becomes the engine's: its prompt in tokens, its wishes within the limits, a way back."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pagetide.answer import Answer, Failure, Reply
from pagetide.constraint import Constraint
from pagetide.faults import Faults
from pagetide.parse import ParsedRequest
from pagetide.parse_limits import RequestLimits
from pagetide.parse_prompt import Prompt
from pagetide.parse_tokens import check_choice, spell
from pagetide.request import Request
from pagetide.samples import Joint, nth_sample
from pagetide.senders import Senders, Stream
from pagetide.statistics import Statistics
from pagetide.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pagetide.build import Built  # which needs torch


class Channel(Protocol):
    """A client's way back, as senders and joint answers use it; it learns which requests are its own."""

    request_ids: Sequence[int]

    def send(self, reply: Reply, final: bool) -> None: ...

    def send_all(self, replies: Sequence[Reply], final: bool) -> None: ...

    def fail(self, failure: Failure) -> None: ...

    def is_cancelled(self) -> bool: ...

    def tell(self, state: Statistics | None) -> None: ...


class Intake:
    """Hands requests to the engine of `built`, and their streams to the senders in turn."""

    def __init__(self, built: Built, limits: RequestLimits, senders: Senders, faults: Faults) -> None:
        self._built = built
        self._limits = limits
        self._senders = senders
        self._faults = faults
        self.ids, self._turns = itertools.count(), itertools.count()

    def ask_statistics(self, channel: Channel) -> None:
        """The engine thread copies its state, a sender makes the text and sends it."""
        sender = self._senders[next(self._turns)]
        self._built.engine.ask(lambda state: sender.run(lambda: channel.tell(state)))

    def submit(
        self,
        parsed: ParsedRequest,
        channel: Channel,
        arrival_s: float,
        constraint: Callable[[], Constraint | None],
    ) -> None:
        """`constraint` makes one for each sample; it raises InvalidArgumentError if the grammar is wrong.

        Whatever else keeps a request out is raised too: see `refusals`.
        """
        built, terms = self._built, parsed.terms
        prompt_ids = self._limits.truncate(_encode(parsed.prompt, built.tokenizer), parsed.params)
        params = self._limits.fit(parsed.source, len(prompt_ids), parsed.params)
        params = spell(params, built.tokenizer, built.vocab_size)
        check_choice(params, built.eos_token_ids)
        sender = self._senders[next(self._turns)]
        streams = self._streams(parsed, prompt_ids, channel)
        channel.request_ids = [stream.request_id for stream in streams]
        built.engine.submit(
            *(
                Request(
                    id=stream.request_id,
                    prompt_ids=prompt_ids,
                    params=nth_sample(params, index),
                    sink=partial(sender.deliver, stream),
                    arrival_s=arrival_s,
                    eos_token_ids=built.eos_token_ids,
                    tenant=terms.tenant,
                    priority=terms.priority,
                    timeout_s=terms.timeout_s,
                    cache_salt=terms.cache_salt,
                    constraint=constraint(),
                )
                for index, stream in enumerate(streams)
            )
        )
        for stream in streams:
            sender.watch(stream)

    def _streams(self, parsed: ParsedRequest, prompt_ids: array[int], channel: Channel) -> list[Stream]:
        """One for each sample, all with the client's one channel."""
        channel = self._faults.within_methods(channel, send="sender", send_all="sender")
        ids = [next(self.ids) for _ in range(parsed.num_samples)]
        answers = [Answer(parsed, prompt_ids, self._built.tokenizer, index) for index in range(len(ids))]
        if len(ids) == 1:
            return [Stream(ids[0], channel, answers[0])]
        joint = Joint(channel, answers, ids, self._built.engine.abort, parsed.stream)
        return [Stream(*each) for each in zip(ids, joint.parts(), answers, strict=True)]


def _encode(prompt: Prompt, tokenizer: Tokenizer) -> array[int]:
    """A chat template writes the model's BOS itself, where there is one."""
    if isinstance(prompt, array):
        return prompt
    if isinstance(prompt, str):
        return array("i", tokenizer.encode(prompt))
    text = tokenizer.apply_chat_template(prompt.messages, add_generation_prompt=True, tools=prompt.tools)
    return array("i", tokenizer.encode(text, add_special_tokens=False))
