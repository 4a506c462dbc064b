"""The registry, the options and their messages, and kinds of targets."""

import dataclasses
import json
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.table import TABLE

import attendrop
from attendrop import ADDrop, AttendropError, FineTune, Method, regularize
from attendrop.methods.core import registry as methods
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.registry import build_method, get_method, given_options, method_names, register_method


@pytest.mark.parametrize(
    ("name", "options", "labels"),
    [
        ("bert", {"num_labels": 1}, torch.tensor([0.1, 0.2, 0.3])),
        ("bert", {"problem_type": "multi_label_classification"}, torch.eye(3)),
        ("bert", {"num_labels": 2, "problem_type": "regression"}, torch.rand(3, 2)),
        ("bert", {}, None),
        ("bert-choice", {}, None),
        ("bert-tokens", {}, None),
        ("bart", {}, None),
        ("gpt2", {}, None),
        ("llama-class", {"problem_type": "multi_label_classification"}, torch.eye(3)),
    ],
)
def test_every_kind_of_target(name: str, options: dict[str, Any], labels: torch.Tensor | None) -> None:
    model, batch = zoo.build(name, **options), zoo.batch_of(name)
    batch = batch if labels is None else batch | {"labels": labels}
    for target in ("pseudo_label", "gold_label"):
        with regularize(model, ADDrop(target=target, layers="all")) as reg:
            reg.loss(batch).backward()
            assert reg.logs()["ad_drop/dropped"] > 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


# --- Options


def test_defaults_are_those_that_were_measured() -> None:
    assert ADDrop().options() == {
        "p": 0.1,
        "q": 0.3,
        "attribution": "gradient",
        "target": "pseudo_label",
        "layers": "first",
        "direction": None,
        "cross_tuning": False,
        "start_epoch": 0,
        "scope": "joint",
        "rule": "gauss_legendre",
        "steps": 8,
        "units": "attention",
        "record_limit": None,
    }


@pytest.mark.parametrize("method", [*TABLE.values(), ADDrop(layers=[0, 1])], ids=str)
def test_options_survive_json_and_make_the_same_method(method: Method) -> None:
    options = json.loads(json.dumps(method.options()))
    assert build_method(method.name, options) == method


@pytest.mark.parametrize(
    ("name", "options", "given"),
    [
        ("ad-drop", {"p": 0.1}, {}),  # the default
        ("ad-drop", {"p": 0.5}, {"p": 0.5}),
        (
            "attendout",
            {"learner": "policy_gradient", "dropout_step": 10, "merge": "sample"},
            {"learner": "policy_gradient"},
        ),
        ("attendout", {"variant": "pruning", "dropout_step": 7}, {"variant": "pruning", "dropout_step": 7}),
        ("ad-drop+attendout", {"attendout.variant": "pruning"}, {"attendout.variant": "pruning"}),
    ],
)
def test_options_that_were_given(name: str, options: dict[str, Any], given: dict[str, Any]) -> None:
    """Some defaults of AttendOut depend on its other options."""
    assert given_options(name, options) == given
    assert given_options(name, build_method(name, options).options()) == given


def test_options_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ADDrop().p = 0.9  # type: ignore[misc]


@pytest.mark.parametrize(
    ("task", "layers"),
    [("sst2", "first"), ("stsb", "first"), ("cola", "all"), ("translation", "encoder")],
)  # fmt: skip
def test_layers_of_the_paper(task: str, layers: str) -> None:
    assert ADDrop.paper_layers(task) == layers


@pytest.mark.parametrize(
    ("method", "epochs", "expected"),
    [
        (ADDrop(cross_tuning=True), 4, [1, 3]),
        (ADDrop(cross_tuning=True), 1, []),
        (ADDrop(cross_tuning=True), 0, []),
        (ADDrop(), 3, [0, 1, 2]),
        (ADDrop(start_epoch=2), 4, [2, 3]),
        (ADDrop(cross_tuning=True, start_epoch=2), 6, [3, 5]),
        (ADDrop(start_epoch=4), 4, []),
        (ADDrop(attribution="recorded"), 3, [1, 2]),
        (ADDrop(attribution="recorded", start_epoch=2), 4, [2, 3]),
        (FineTune(), 4, None),
    ],
)
def test_regularized_epochs(method: Method, epochs: int, expected: list[int] | None) -> None:
    assert method.regularized_epochs(epochs) == expected


# --- The registry


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ADDrop()),
        ({"p": "0.4", "q": "1"}, ADDrop(p=0.4, q=1.0)),
        ({"cross-tuning": "off"}, ADDrop()),
        ({"cross_tuning": "True"}, ADDrop(cross_tuning=True)),
        ({"steps": "20", "rule": "riemann"}, ADDrop(steps=20, rule="riemann")),
        ({"layers": "0,3"}, ADDrop(layers="0,3")),
        ({"layers": "[4]"}, ADDrop(layers="[4]")),
        ({"layers": [1, 2], "p": 0.5}, ADDrop(layers=(1, 2), p=0.5)),
    ],
)
def test_methods_are_built_from_text(options: dict[str, Any], expected: Method) -> None:
    assert build_method("ad-drop", options) == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ad-drop", {"p": "abc"}, r"p='abc' is not a number"),
        ("ad-drop", {"p": "nan"}, r"p=nan must be above 0 and below 1"),
        ("ad-drop", {"q": "1.5"}, r"q=1\.5 must be above 0 and at most 1"),
        ("ad-drop", {"attribution": "gradients"}, r"attribution='gradients' is not known\. Did you mean 'gradient'\?"),
        ("ad-drop", {"atribution": "random"}, r"no option 'atribution'\. Did you mean 'attribution'\?"),
        ("ad-drop", {"zzz": "1"}, r"no option 'zzz'\. Choose from: p, q"),
        ("finetune", {"p": "0.3"}, r"'finetune' has no options"),
        ("addrop", {}, r"no method 'addrop'\. Did you mean 'ad-drop'\?"),
        ("zzz", {}, r"no method 'zzz'\. Choose from: finetune, ad-drop"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        build_method(name, options)


@dataclasses.dataclass(frozen=True)
class Mine(Method):
    """A method of a third party."""

    info = MethodInfo("mine", "does nothing")
    strength: float = 0.5


@pytest.fixture
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    method_names()  # installed plug-ins, if any, come in before the registry is copied
    monkeypatch.setattr(methods, "_METHODS", dict(methods._METHODS))


@pytest.mark.usefixtures("_own_registry")
def test_a_registered_method_can_be_built() -> None:
    assert register_method(Mine) is Mine
    register_method(Mine)
    assert "mine" in method_names()
    assert build_method("mine", {"strength": "0.25"}) == Mine(0.25)


@pytest.mark.usefixtures("_own_registry")
def test_a_name_is_given_once() -> None:
    other = type("Other", (Mine,), {"info": MethodInfo("ad-drop")})
    with pytest.raises(AttendropError, match=r"named 'ad-drop' is registered already: ADDrop"):
        register_method(other)
    assert get_method("ad-drop") is ADDrop


@pytest.mark.usefixtures("_own_registry")
def test_entry_points_bring_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def entry_points(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("mine", f"{__name__}:Mine", group)]

    monkeypatch.setattr(methods, "entry_points", entry_points)
    methods._load_plugins.cache_clear()
    try:
        assert build_method("mine").name == "mine"
        assert asked == ["attendrop.methods"]
    finally:
        methods._load_plugins.cache_clear()


def test_public_names_are_there_and_documented() -> None:
    for name in attendrop.__all__:
        assert (getattr(attendrop, name).__doc__ or "").strip(), name


def test_every_published_method_has_a_citation() -> None:
    assert {name for name in method_names() if not get_method(name).info.citation()} == {"finetune"}
    entry = get_method("ad-drop").info.citation()
    assert entry.startswith("@inproceedings{yang2022addrop,") and entry.endswith("}\n}") and "keywords" not in entry
