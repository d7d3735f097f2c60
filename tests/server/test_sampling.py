"""Every sampling parameter, by what it does to a text on the real server."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from triton_world import Response, Triton

pytestmark = pytest.mark.server

FRANCE = "The capital of France is"
GREEDY = {"temperature": 0, "max_tokens": 24}


def run(triton: Triton, prompt: str = FRANCE, returned: tuple[str, ...] = (), **sampling: Any) -> Response:
    flags = {f"return_{name}": True for name in returned}
    (response,) = triton.start(
        prompt, stream=False, exclude_input_in_output=True, sampling=GREEDY | sampling, **flags
    ).all()
    assert not response.error, response.error
    return response


def text(triton: Triton, **sampling: Any) -> str:
    return run(triton, **sampling).text


def tokens(triton: Triton, **sampling: Any) -> list[int]:
    told = json.loads(run(triton, returned=("logprobs",), logprobs=0, **sampling).outputs["logprobs"])
    return [int(next(iter(token))) for token in told]


def test_a_banned_word_does_not_come_with_or_without_a_space(triton: Triton) -> None:
    assert "Paris" in text(triton)
    assert "Paris" not in text(triton, bad_words=["Paris"])
    assert text(triton, bad_words=[""]) == text(triton)


def test_a_bias_brings_a_token_or_takes_it_away(triton: Triton) -> None:
    first = tokens(triton)[0]
    assert first not in tokens(triton, logit_bias={str(first): -100})
    assert set(tokens(triton, logit_bias={"504": "100"})) == {504}


def test_only_allowed_tokens_come(triton: Triton) -> None:
    few = sorted(set(tokens(triton)))[:5]
    assert set(tokens(triton, allowed_token_ids=few, ignore_eos=True)) <= set(few)
    assert set(tokens(triton, allowed_token_ids=few, temperature=1, seed=3)) <= set(few)


def test_penalties_make_a_text_repeat_itself_less_or_more(triton: Triton) -> None:
    def num_distinct(**penalty: Any) -> int:
        return len(set(tokens(triton, max_tokens=128, ignore_eos=True, **penalty)))

    plain = num_distinct()
    for penalty in ({"presence_penalty": 2}, {"frequency_penalty": "1.5"}, {"repetition_penalty": 1.5}):
        assert num_distinct(**penalty) > plain
    assert num_distinct(frequency_penalty=-2) < plain


def test_at_least_min_tokens_come(triton: Triton) -> None:
    end = tokens(triton)[2]
    assert len(tokens(triton, stop_token_ids=[end])) == 3
    assert len(tokens(triton, stop_token_ids=[end], min_tokens=10)) > 10


def test_a_prompts_logprobs_are_told_for_each_token_also_when_it_was_cached(idle: Triton) -> None:
    prompt = "The three primary colours are red, green and blue. " * 6
    told = []
    for _ in range(2):
        run(idle, prompt=prompt)
        outputs = run(
            idle, prompt=prompt, returned=("prompt_logprobs", "num_input_tokens"), prompt_logprobs=2
        ).outputs
        told.append(json.loads(outputs["prompt_logprobs"]))
        assert len(told[-1]) == outputs["num_input_tokens"] > 64
    assert told[0] == told[1]
    assert told[0][0] is None
    assert all(2 <= len(token) <= 3 for token in told[0][1:])
    own = [next(iter(token.values())) for token in told[0][1:]]
    assert prompt.endswith("".join(each["decoded_token"] for each in own))
    assert all(each["logprob"] <= 0 and each["rank"] >= 1 for each in own)
    assert [each["rank"] for each in own[-20:]].count(1) > 15, "a sixth repetition surprises nobody"


def test_a_stream_tells_the_prompts_logprobs_once(triton: Triton) -> None:
    responses = triton.start(
        FRANCE, sampling=GREEDY | {"prompt_logprobs": 0}, return_prompt_logprobs=True
    ).all()
    first, *others = [json.loads(response.outputs["prompt_logprobs"]) for response in responses]
    assert [len(token or {}) for token in first] == [0, 1, 1, 1, 1]
    assert others
    assert set(others) == {None}


def test_a_chosen_tokens_rank_is_its_place_in_the_whole_vocabulary(triton: Triton) -> None:
    told = run(triton, returned=("logprobs",), logprobs=20, temperature=2.0, seed=4).outputs["logprobs"]
    ranks = [[each["rank"] for each in token.values()] for token in json.loads(told)]
    assert any(own > 20 for own, *_ in ranks), "hot enough to choose an unlikely token"
    assert all(others == list(range(1, 21)) for own, *others in ranks if own > 20)


def test_only_the_last_tokens_of_the_prompt_are_kept(triton: Triton) -> None:
    long = f"Berlin is in Germany. Rome is in Italy. {FRANCE}"
    kept = run(triton, prompt=long, returned=("num_input_tokens",), truncate_prompt_tokens=5)
    assert kept.outputs["num_input_tokens"] == 5
    assert kept.text == run(triton, prompt=f" {FRANCE}").text


def test_special_tokens_are_shown_without_spaces_when_asked_for(triton: Triton) -> None:
    shown = {"skip_special_tokens": False, "allowed_token_ids": [1, 2], "ignore_eos": True, "max_tokens": 4}
    assert text(triton, **shown) == text(triton, **shown, spaces_between_special_tokens=False)
    assert "<|im_" in text(triton, **shown)


def test_all_at_once_stay_apart(idle: Triton) -> None:
    """Requests with different parameters in one batch, each as it comes alone."""
    asked: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.0, "seed": 5, "temperature": 0.9},
        {"bad_words": ["Paris", "city"]},
        {"logit_bias": {"28": 5, "30": 5}},
        {"allowed_token_ids": list(range(200, 9000))},
        {"min_tokens": 20},
    ]
    alone = [text(idle, **each) for each in asked]
    together = idle.together([{"prompt": FRANCE, "sampling": GREEDY | each} for each in asked * 4])
    joined = ["".join(response.text for response in responses) for responses in together]
    assert joined == list(itertools.chain(*[alone] * 4))


def test_what_leaves_no_token_ends_with_the_reason_and_disturbs_nobody(idle: Triton) -> None:
    """Only after the first token: what leaves no first one is refused at once."""
    nothing = {"allowed_token_ids": [7042, 2], "bad_words": ["Paris Paris"], "min_tokens": 3}
    good, bad = idle.together(
        [{"prompt": FRANCE, "sampling": GREEDY}, {"prompt": FRANCE, "sampling": GREEDY | nothing}]
    )
    assert "no token is left to choose from" in bad[-1].error
    assert "".join(response.text for response in good) == text(idle)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"presence_penalty": 3}, "presence_penalty is 3; it must be a number from -2 to 2"),
        ('{"frequency_penalty": NaN}', "frequency_penalty is nan; it must be a number from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be a number from 0.001 to 1000"),
        ({"logit_bias": {"49152": 1}}, "a token of logit_bias is '49152'; it must be a whole number, 0 to"),
        ({"allowed_token_ids": []}, "allowed_token_ids is []; it must be a list of at least one token id"),
        ({"bad_words": [" "]}, "bad_words[0] is ' '; it must have at least one token"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21; this model serves at most 20"),
        ({"logprobs": -1}, "logprobs is -1, all 49152 tokens; this model serves at most 20"),
        (
            {"allowed_token_ids": [2], "min_tokens": 1},
            "allowed_token_ids has no token that bad_words and min",
        ),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0; it must be a whole number of at least"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_value_is_refused_with_its_limit(
    triton: Triton, sampling: dict[str, Any] | str, message: str
) -> None:
    assert triton.error(FRANCE, sampling=sampling).startswith(message)
