"""Clocks start when kernels are there: from an empty disk cache nothing is compiled while an answer is timed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rocketkv.hf.warm_up import _warm_layers, warm_up
from rocketkv.policies.registry import make_policy
from support.models import tiny_model
from support.policies import COMPRESSING, SINGLE

CODE = """
import json, sys, time
import torch
from numba.core import event
from rocketkv.evals import answering
from rocketkv.evals.script import make_script
from rocketkv.evals.task import Example
from rocketkv.hf import answer
from rocketkv.hf.weights import quantise_weights
from rocketkv.policies.registry import make_policy
from support.byte_model import byte_model, byte_tokenizer

compiled = []

class Listener(event.Listener):
    def on_start(self, event):
        compiled.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event):
        pass

event.register("numba:compile", Listener())

class Clock:
    def __init__(self):
        self.readings = []
    def perf_counter(self):
        self.readings.append(len(compiled))
        return time.perf_counter()

answer.time, answering.time = Clock(), Clock()
torch.set_num_threads(1)
model, tokenizer = byte_model(), byte_tokenizer()
def timed(name, tokens):
    answer.time.readings.clear()
    told = answer.answer(model, tokenizer, list(range(3, 203)), make_policy(name, 64), max_new_tokens=tokens)
    print(json.dumps([*answer.time.readings, len(compiled)]))
    assert told.new_tokens == tokens

timed("rocketkv", 70)
script = make_script(tokenizer, Example("", "x" * 200, "y", "", ("z",), 3, False), protocol="inside", mode=None)
policies = [make_policy(*spec) for spec in (("full", 64), ("rocketkv-mt", 64), ("rocketkv", 100_000))]
list(answering.answer_script(model, tokenizer, script, policies, answering.Settings()))
in_script = len(compiled)
quantise_weights(model)
print(json.dumps([*answering.time.readings, in_script]))
timed("quest", 3)
"""


def test_nothing_is_compiled_after_the_clock_started(tmp_path) -> None:
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parents[1]), *sys.path])}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    long, script, quest = map(json.loads, done.stdout.splitlines())
    assert len(script) > 2 and len(quest) > 2 and len(long) > 2
    assert {*script} == {script[0]} and script[0] > long[0] > 0, (
        "readings of the clock saw other numbers of compiled kernels"
    )
    assert {*quest} == {quest[0]} and quest[0] > script[0], "Quest and 8-bit weights have kernels of their own"
    assert {*long} == {long[0]}, "an answer that outgrows its memory runs steps in parts as well as in one call"
    assert done.stderr.count("compiling CPU kernels") == 1


@pytest.mark.parametrize("name", COMPRESSING)
def test_every_policy_can_be_warmed_and_random_numbers_stay(name) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    warm_up(tiny_model("llama"), [COMPRESSING[name](5000)], tokens=10_000)
    assert torch.equal(torch.rand(1), expected)


def test_policies_of_one_batch_are_warmed_together() -> None:
    warm_up(tiny_model("gemma3"), [make(40) for make in SINGLE.values()], tokens=100)


@pytest.mark.parametrize(
    ("policy", "tokens", "backend", "runs"),
    [
        (make_policy("full"), 1000, "auto", 0),
        (make_policy("rocketkv", 64), 64, "auto", 0),
        (make_policy("rocketkv", 64), 65, "reference", 0),
        (make_policy("rocketkv", 64), 65, "auto", 1),
        (make_policy("rocketkv", 64, skip_layers=1), 65, "cpu", 2),
    ],
)
def test_nothing_runs_where_no_kernel_will(monkeypatch, policy, tokens, backend, runs) -> None:
    seen = []
    monkeypatch.setattr("rocketkv.hf.warm_up.prefill_attend", lambda *args, **_: seen.append(args[3]) or args[3])
    monkeypatch.setattr("rocketkv.hf.warm_up.decode_attend", lambda *args, **_: None)
    _warm_layers.cache_clear()
    warm_up(tiny_model("llama"), [policy], tokens=tokens, backend=backend)
    _warm_layers.cache_clear()
    assert len(seen) == runs
