"""A conversation over one cache: what each turn feeds, and what happens when a turn fails."""

import pytest
import torch

from rocketkv.hf.chat import Conversation
from rocketkv.hf.models import load_model
from rocketkv.hf.prompting import PromptError
from rocketkv.policies.registry import make_policy


class Fed:
    """Columns of every forward of a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.columns: list[int] = []
        model.model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self.columns.append(kwargs["input_ids"].shape[1])


@pytest.fixture
def talk(make_folder):
    """A conversation with a tiny model of bytes; the answer's tokens are its own."""
    model, tokenizer = load_model(str(make_folder()))

    def start(policy: str = "rocketkv-mt", budget: int = 40, **options) -> tuple[Conversation, Fed]:
        options = {"max_new_tokens": 5} | options
        return Conversation(model, tokenizer, make_policy(policy, budget), **options), Fed(model)

    return start


@pytest.mark.parametrize("policy", ["rocketkv-mt", "rocketkv", "snapkv", "quest", "full"])
def test_only_what_is_new_is_fed(talk, policy):
    conversation, fed = talk(policy)
    for text in ("a first message of some length", "then another", "and a third one"):
        fed.columns.clear()
        before = conversation.cache.get_seq_length()
        turn = conversation.ask(text)
        prompt, *steps = fed.columns
        assert steps == [1] * 4
        assert prompt == turn.fed_tokens == len(conversation.ids) - 5 - before
        # The answer's last token is fed with the next turn.
        assert conversation.cache.get_seq_length() == len(conversation.ids) - 1
    assert conversation.report().tokens_seen == [len(conversation.ids) - 1]


def test_the_tokens_are_the_templates_own(talk):
    conversation, _ = talk()
    messages = []
    for text in ("one", "two words", "and three words"):
        said = conversation.ask(text).answer
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "\0"}]
    render = conversation.tokenizer.apply_chat_template
    pieces = render(messages, tokenize=False).split("\0")
    encode = conversation.tokenizer
    ids, start = conversation.ids, 0
    for piece in pieces[:-1]:
        wanted = encode(piece, add_special_tokens=False)["input_ids"]
        assert ids[start : start + len(wanted)] == wanted
        start += len(wanted) + 5
    assert start == len(ids)
    assert ids[-5:] == said.new_ids


def test_an_end_token_is_the_templates_own(talk):
    conversation, fed = talk()
    first = conversation.ask("hello").answer.new_ids
    conversation.reset()
    conversation.model.generation_config.eos_token_id = first[2]
    conversation._ends = {first[2]}
    ended = conversation.ask("hello").answer.new_ids
    assert ended == first[:3]
    assert conversation.ids[-2:] == first[:2]
    assert conversation.cache.get_seq_length() == len(conversation.ids)
    fed.columns.clear()
    turn = conversation.ask("again")
    assert fed.columns[0] == turn.fed_tokens == len(conversation.next_ids("again"))


def test_a_turn_beyond_the_context_is_refused_and_nothing_is_lost(talk):
    conversation, _ = talk()
    conversation.ask("hello")
    ids, seen = list(conversation.ids), conversation.cache.get_seq_length()
    too_long = "x" * 600
    with pytest.raises(PromptError, match=r"conversation has 6\d\d tokens, and the model's context holds 512"):
        conversation.ask(too_long)
    assert (conversation.ids, conversation.cache.get_seq_length()) == (ids, seen)
    assert conversation.ask("still there?").fed_tokens == len(conversation.next_ids("still there?")) + 1


def test_answers_stop_at_the_context(talk):
    conversation, _ = talk(max_new_tokens=1000)
    assert len(conversation.ask("x" * 450).answer.new_ids) < 60
    with pytest.raises(PromptError, match="context holds 512"):
        conversation.ask("more")


def test_a_stopped_answer_stays_in_the_conversation(talk):
    conversation, _ = talk(max_new_tokens=50)
    asked = []
    said = conversation.ask("hello", stop=lambda: asked.append(1) or len(asked) == 3).answer
    assert len(said.new_ids) == 3
    assert conversation.ids[-3:] == said.new_ids
    assert conversation.ask("go on").fed_tokens == len(conversation.next_ids("go on")) + 1


def test_an_error_in_the_middle_of_a_turn_costs_a_second_reading_only(talk):
    conversation, fed = talk()
    conversation.ask("hello")
    ids = list(conversation.ids)

    def fail(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversation.ask("and now", on_text=fail)
    assert conversation.ids == ids
    assert conversation.cache.get_seq_length() == 0
    fed.columns.clear()
    conversation.ask("and now")
    assert fed.columns[0] == len(ids) + len(conversation.next_ids("and now"))


def test_reset(talk):
    conversation, _ = talk()
    first = conversation.ask("hello").answer
    conversation.reset()
    again = conversation.ask("hello").answer
    assert (again.new_ids, again.prompt_tokens) == (first.new_ids, first.prompt_tokens)


ALTERNATING = "{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}|{% endif %}{% endfor %}A:"
REFUSING = "{% if messages|length > 1 %}{{ raise_exception('one turn only') }}{% endif %}U{{ messages[0].content }}A:"
FORGETFUL = "{% for m in messages %}{% if loop.last or m.role == 'user' %}[{{ m.content }}]{% endif %}{% endfor %}"
STRIPPING = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}</>{% endfor %}<a>"


@pytest.mark.parametrize("template", [ALTERNATING, REFUSING, FORGETFUL])
def test_a_template_that_cannot_go_on_is_refused(talk, template):
    conversation, _ = talk()
    conversation.tokenizer.chat_template = template
    conversation.ask("hello")
    ids = list(conversation.ids)
    with pytest.raises(PromptError, match="chat template"):
        conversation.ask("again")
    assert conversation.ids == ids


def test_a_template_that_changes_earlier_answers_does_not_change_what_was_read(talk):
    conversation, _ = talk()
    conversation.tokenizer.chat_template = STRIPPING
    conversation.ask("hello")
    ids = list(conversation.ids)
    conversation.ask("again")
    assert conversation.ids[: len(ids)] == ids
    between = conversation.tokenizer("</><user>again</><a>", add_special_tokens=False)["input_ids"]
    assert conversation.ids[len(ids) : -5] == between


def test_without_a_template_turns_are_lines(talk):
    conversation, _ = talk()
    conversation.tokenizer.chat_template = None
    conversation.ask("hello")
    assert conversation.tokenizer.decode(conversation.next_ids("again")) == "\nagain\n"
