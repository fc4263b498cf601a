"""Aggregation rules: small cases by hand, and one dishonest device among eight."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cfel.errors import InputError
from cfel.learning import edge as robust
from cfel.learning.compressors import (
    AtomicUpdate,
    BlockRotation,
    DenseUpdate,
    Factors,
    LatticeUpdate,
    QuantisedUpdate,
    SampledUpdate,
    SparseUpdate,
    Update,
    compressor,
)
from cfel.learning.device_messages import DeviceReport
from cfel.learning.edge import (
    AggregationParameters,
    ScaledUpdate,
    aggregate,
    edge_aggregate,
    find_update_rule,
    robust_aggregate,
)
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.plugins import BUILT_IN_ONLY

KINDS = ("trimmed_mean", "median", "clipped")
WHOLE = ("krum", "geometric_median")


def report(device: int, update: Update, buffers: list[float] | None = None) -> DeviceReport:
    return DeviceReport(device, update, torch.tensor(buffers or []), Estimates(1.0, 1.0), 5, 0.1, 10)


def dense(device: int, *values: float, buffers: list[float] | None = None) -> DeviceReport:
    return report(device, DenseUpdate(torch.tensor(values)), buffers)


def zeros(size: int, buffers: int = 0) -> FlatModel:
    return FlatModel(torch.zeros(size), torch.zeros(buffers))


FIVE = [dense(n, value, -value) for n, value in enumerate([1.0, 2.0, 3.0, 4.0, 1000.0])]


def test_trimmed_mean_by_hand() -> None:
    """One of five left out at each end: (2 + 3 + 4) / 3 = 3."""
    made = robust_aggregate(zeros(2), FIVE, None, AggregationParameters("trimmed_mean", trim=0.2))
    assert made.parameters.tolist() == [3.0, -3.0]


def test_trimmed_mean_takes_weights_along() -> None:
    """Left are 2, 3 and 4 with weights 1, 1 and 2: 13 / 4."""
    weights = {0: 9.0, 1: 1.0, 2: 1.0, 3: 2.0, 4: 9.0}
    made = robust_aggregate(zeros(2), FIVE, weights, AggregationParameters("trimmed_mean", trim=0.2))
    assert made.parameters.tolist() == [3.25, -3.25]


@pytest.mark.parametrize(("count", "expected"), [(3, 2.0), (4, 2.5), (5, 3.0)])
def test_median_by_hand(count: int, expected: float) -> None:
    made = robust_aggregate(zeros(2), FIVE[:count], None, AggregationParameters("median"))
    assert made.parameters.tolist() == [expected, -expected]


def test_no_weight_moves_the_median() -> None:
    """A device that claims 2⁵³ samples would otherwise choose every value."""
    heavy = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 2.0**53}
    made = robust_aggregate(zeros(2), FIVE, heavy, AggregationParameters("median"))
    assert made.parameters.tolist() == [3.0, -3.0]


def test_clipping_by_hand() -> None:
    """Lengths 5, 5 and 500, at most twice the median 5: (3, 4) twice and (6, 8) make a mean of (4, 16/3)."""
    reports = [dense(0, 3.0, 4.0), dense(1, 3.0, 4.0), dense(2, 300.0, 400.0)]
    made = robust_aggregate(zeros(2), reports, None, AggregationParameters("clipped", clip=2.0))
    assert made.parameters.tolist() == pytest.approx([4.0, 16 / 3], rel=1e-6)


@pytest.mark.parametrize("kind", [*KINDS, *WHOLE])
def test_statistics_go_through_the_same_rule(kind: str) -> None:
    reports = [dense(n, 0.0, buffers=[1.0]) for n in range(7)] + [dense(7, 0.0, buffers=[1e9])]
    made = robust_aggregate(zeros(1, buffers=1), reports, None, AggregationParameters(kind))
    assert 0.9 < made.buffers.item() < 1.2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["topk", "randomk", "jl", "quantise", "uveqfed", "atomo", "none"])
def test_every_kind_of_update_means_the_vector_it_stands_for(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed updates give what their dense vectors give, over several blocks; NumPy is the reference."""
    monkeypatch.setattr(robust, "BLOCK_ENTRIES", 700)
    draw = np.random.default_rng(3)
    size, count = 3000, 7
    lengths = [1.0, 1.1, 0.9, 1.2, 50.0, 1.0, 0.8]
    vectors = [torch.from_numpy(x * draw.standard_normal(size).astype(np.float32)) for x in lengths]
    reports = [report(n, compressor(name)(vectors[n], 0.2, n)) for n in draw.permutation(count).tolist()]
    made = robust_aggregate(zeros(size), reports, None, AggregationParameters(kind, trim=0.2))

    whole = np.zeros((count, size))
    for each in reports:
        entry = torch.zeros(size)
        each.update.add_to(entry, 1.0)
        whole[each.device] = entry.numpy()
    ranked = np.sort(whole, axis=0)
    norms = np.linalg.norm(whole, axis=1)
    shrunk = whole * np.minimum(1.0, 2 * np.median(norms) / norms)[:, None]
    expected = {"trimmed_mean": ranked[1:-1].mean(0), "median": ranked[3], "clipped": shrunk.mean(0)}[kind]
    np.testing.assert_allclose(made.parameters.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_is_left_out_it_is_the_mean_to_the_bit(
    kind: str,
) -> None:
    draw = np.random.default_rng(1)
    reports = [
        report(n, compressor("topk")(torch.from_numpy(draw.standard_normal(50).astype(np.float32)), 0.5, 0))
        for n in (9, 4)
    ]
    weights = {4: 2.0, 9: 1.0}
    made = robust_aggregate(zeros(50), reports, weights, AggregationParameters(kind))
    assert made.sha256() == edge_aggregate(zeros(50), reports, weights).sha256()
    assert robust_aggregate(model := zeros(3), [], None, AggregationParameters(kind)) is model


@pytest.mark.parametrize("kind", ["mean", *KINDS, *WHOLE])
def test_aggregate_takes_the_rule_from_its_parameters(kind: str) -> None:
    """Each rule gives what its own function gives, and no report leaves the very model."""
    parameters, weights = AggregationParameters(kind), {each.device: each.device + 1.0 for each in FIVE}
    made = aggregate(zeros(2), iter(FIVE), weights, parameters)
    assert made.sha256() == robust_aggregate(zeros(2), FIVE, weights, parameters).sha256()
    assert aggregate(model := zeros(2), iter(()), {}, parameters) is model


def test_the_mean_uses_each_report_as_it_arrives() -> None:
    """So memory does not grow with the number of devices."""
    model = zeros(2)
    events: list[str] = []

    def arrive() -> Iterator[DeviceReport]:
        for device in range(3):
            events.append(f"device {device} arrives")
            yield dense(device, 1.0, 1.0)
            events.append(f"device {device} is used")

    weights = dict.fromkeys(range(3), 1.0)
    made = aggregate(model, arrive(), weights, AggregationParameters())
    assert made.parameters.tolist() == pytest.approx([1.0, 1.0])
    assert events == [f"device {n} {what}" for n in range(3) for what in ("arrives", "is used")]


@pytest.mark.parametrize("kind", ["mean", "median"])
@pytest.mark.parametrize(
    ("devices", "complaint"),
    [
        ((1, 0), "device 1: unexpected, or out of order"),
        ((0, 2), "device 2: unexpected"),
        ((0, 1, 1), "device 1: unexpected"),
        ((0,), "device 1: missing"),
    ],
)
def test_reports_must_be_those_of_the_weights_in_order(
    kind: str, devices: tuple[int, ...], complaint: str
) -> None:
    reports = [dense(device, 1.0, 1.0) for device in devices]
    with pytest.raises(InputError, match=complaint):
        aggregate(zeros(2), reports, {0: 1.0, 1: 1.0}, AggregationParameters(kind))


@pytest.mark.parametrize("kind", [*KINDS, *WHOLE])
def test_the_order_of_arrival_does_not_matter(kind: str) -> None:
    draw = np.random.default_rng(0)
    reports = [dense(n, *draw.standard_normal(20).tolist()) for n in range(9)]
    orders = [[reports[i] for i in draw.permutation(9)] for _ in range(10)]
    weights = {n: n + 1.0 for n in range(9)}
    parameters = AggregationParameters(kind)
    assert len({robust_aggregate(zeros(20), each, weights, parameters).sha256() for each in orders}) == 1


def test_one_dishonest_device_of_eight_moves_only_the_mean() -> None:
    """Seven agree on a direction of length 1 within noise; the eighth sends −100 times it."""
    draw = np.random.default_rng(2)
    truth = np.full(400, 1 / 20, dtype=np.float32)
    honest = [truth + 0.01 * draw.standard_normal(400).astype(np.float32) for _ in range(7)]
    reports = [report(n, DenseUpdate(torch.from_numpy(vector))) for n, vector in enumerate(honest)]
    reports.append(report(7, ScaledUpdate(DenseUpdate(torch.from_numpy(truth)), -100.0)))
    errors: dict[str, float] = {}
    for kind in ("mean", *KINDS, *WHOLE):
        made = robust_aggregate(zeros(400), reports, None, AggregationParameters(kind))
        errors[kind] = float(np.linalg.norm(made.parameters.numpy() - truth))
    assert errors["mean"] > 12
    assert errors["median"] < 0.1
    assert errors["trimmed_mean"] < 0.1
    assert errors["clipped"] < 0.5
    assert errors["krum"] < 0.1
    assert errors["geometric_median"] < 0.1


LARGEST = float(np.finfo(np.float32).max)


def extreme_updates(size: int) -> dict[str, Update]:
    """Updates of finite numbers that decode to infinite ones, or to the largest there are."""
    rotation = BlockRotation(size, 5)
    return {
        "none": DenseUpdate(torch.full((size,), float("inf"))),
        "topk": SparseUpdate(size, torch.tensor([0, 3], dtype=torch.int32), torch.tensor([np.nan, 1.0])),
        "randomk": SampledUpdate(size, 5, torch.tensor([float("inf"), 1.0])),
        "jl": SampledUpdate(size, 5, torch.full((rotation.padded // 2,), LARGEST), rotation),
        "quantise": QuantisedUpdate(size, 4, torch.full((1024,), 7, dtype=torch.int16), torch.tensor([3e38])),
        "uveqfed": LatticeUpdate(size, 4, 5, torch.full((1024,), 7, dtype=torch.int16), torch.tensor([3e38])),
        "atomo": AtomicUpdate(
            SparseUpdate(size, torch.empty(0, dtype=torch.int32), torch.empty(0)),
            (Factors(0, torch.full((1, 4), LARGEST), torch.full((1, 5), LARGEST)),),
        ),
    }


@pytest.mark.parametrize("kind", [*KINDS, *WHOLE])
@pytest.mark.parametrize("name", ["none", "topk", "randomk", "jl", "quantise", "uveqfed", "atomo"])
def test_an_update_that_decodes_to_infinity_is_left_out(name: str, kind: str) -> None:
    """The result has the bits of a round without that device, in buffers as well."""
    honest = [dense(n, *([1.0 + n] * 40), buffers=[0.5]) for n in range(3)]
    bad = report(3, extreme_updates(40)[name], [0.5])
    parameters, weights = AggregationParameters(kind), {n: n + 1.0 for n in range(4)}
    model = zeros(40, buffers=1)
    made = robust_aggregate(model, [*honest, bad], weights, parameters)
    assert made.sha256() == robust_aggregate(model, honest, weights, parameters).sha256()
    assert robust_aggregate(model, [bad], weights, parameters) is model
    worse = replace(honest[0], device=3, buffers=torch.tensor([float("inf")]))
    made = robust_aggregate(model, [*honest, worse], weights, parameters)
    assert made.sha256() == robust_aggregate(model, honest, weights, parameters).sha256()


def test_of_two_devices_the_shorter_update_is_the_measure() -> None:
    """Lengths 5 and 5·10³⁰, at most twice the shorter one: (3, 4) and (6, 8) make a mean of (4.5, 6)."""
    reports = [dense(0, 3.0, 4.0, buffers=[1.0]), dense(1, 3e30, 4e30, buffers=[1e30])]
    made = robust_aggregate(zeros(2, buffers=1), reports, None, AggregationParameters("clipped", clip=2.0))
    assert made.parameters.tolist() == pytest.approx([4.5, 6.0], rel=1e-6)
    assert made.buffers.tolist() == pytest.approx([1.5], rel=1e-6)
    idle = [dense(0, 0.0, 0.0), dense(1, 3.0, 4.0)]
    made = robust_aggregate(zeros(2), idle, None, AggregationParameters("clipped", clip=2.0))
    assert made.parameters.tolist() == [1.5, 2.0]


def test_krum_by_hand() -> None:
    """Of five, one counts as wrong, so each has 5 − 1 − 2 = 2 neighbours.

    At 0, 1, 2, 4 and 1000 the two nearest squared distances sum to 1 + 4, 1 + 1, 1 + 4, 4 + 9 and far more:
    the last is left out, and the mean of the others is 7/4. With weights 1, 1, 1, 5 it is 23/8.
    """
    reports = [dense(n, value) for n, value in enumerate([0.0, 1.0, 2.0, 4.0, 1000.0])]
    made = robust_aggregate(zeros(1), reports, None, AggregationParameters("krum", trim=0.2))
    assert made.parameters.tolist() == [1.75]
    weights = {0: 1.0, 1: 1.0, 2: 1.0, 3: 5.0, 4: 100.0}
    made = robust_aggregate(zeros(1), reports, weights, AggregationParameters("krum", trim=0.2))
    assert made.parameters.tolist() == [2.875]


def test_krum_keeps_the_lowest_id_among_equals() -> None:
    """Two of five count as wrong, so each has one neighbour: at 0.25, 0, 0.25, 0.25 and 0, squared.

    Devices 1 and 4 at 0 are kept, and device 0 at 9 as the first of three: 9 / 3.
    """
    reports = [dense(n, value) for n, value in enumerate([9.0, 0.0, 0.5, 9.5, 0.0])]
    made = robust_aggregate(zeros(1), reports, None, AggregationParameters("krum", trim=0.4))
    assert made.parameters.tolist() == [3.0]


def test_the_geometric_median_by_hand() -> None:
    """On a line it is the median; in a square the crossing of the diagonals, wherever they end."""
    line = [dense(n, value) for n, value in enumerate([1.0, 2.0, 1e6])]
    made = robust_aggregate(zeros(1), line, None, AggregationParameters("geometric_median"))
    assert made.parameters.tolist() == pytest.approx([2.0], abs=0.01)
    corners = [dense(0, 1.0, 1.0), dense(1, -1.0, -1.0), dense(2, 1.0, -1.0), dense(3, -500.0, 500.0)]
    made = robust_aggregate(zeros(2), corners, None, AggregationParameters("geometric_median"))
    assert made.parameters.tolist() == pytest.approx([0.0, 0.0], abs=0.01)
    claimed = {0: 1.0, 1: 1.0, 2: 1e6}
    made = robust_aggregate(zeros(1), line, claimed, AggregationParameters("geometric_median"))
    assert made.parameters.tolist() == pytest.approx([2.0], abs=0.01)
    same = [dense(n, 2.0, 3.0) for n in range(3)]
    made = robust_aggregate(zeros(2), same, None, AggregationParameters("geometric_median"))
    assert made.parameters.tolist() == [2.0, 3.0]


def test_a_rule_of_ones_own_sees_updates_and_statistics_by_id() -> None:
    seen: list[list[list[float]]] = []

    def last(updates: torch.Tensor, weights: torch.Tensor, parameters: AggregationParameters) -> torch.Tensor:
        seen.extend([updates.tolist(), [weights.tolist(), [parameters.options["share"]]]])
        return updates[-1] * float(parameters.options["share"])

    own = BUILT_IN_ONLY.add_objects({"<aggregation.kind last>": last})
    rule = find_update_rule("<aggregation.kind last>", own)
    parameters = AggregationParameters("<aggregation.kind last>", options={"share": 0.5})
    model = FlatModel(torch.tensor([1.0, 1.0]), torch.tensor([10.0]))
    reports = [dense(0, 1.0, 2.0, buffers=[11.0]), dense(1, 3.0, 4.0, buffers=[14.0])]
    made = aggregate(model, reports, {0: 1.0, 1: 3.0}, parameters, rule)
    assert seen == [[[1.0, 2.0, 1.0], [3.0, 4.0, 4.0]], [[1.0, 3.0], [0.5]]]
    assert (made.parameters.tolist(), made.buffers.tolist()) == ([2.5, 3.0], [12.0])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda updates, _weights, _parameters: updates, r"shape \(2, 2\); must be \(2,\)"),
        (lambda *_: 3, "returned a int, not a Tensor"),
        (lambda updates, *_: updates[9], "failed in test_edge.py, line"),
        (lambda updates: updates, r"is called with \(updates, weights, parameters\)"),
    ],
)
def test_wrong_rules_of_ones_own(rule: Any, message: str) -> None:
    own, parameters = BUILT_IN_ONLY.add_objects({"<a>": rule}), AggregationParameters("<a>")
    with pytest.raises(InputError, match=f"aggregation '<a>'.*{message}"):
        robust_aggregate(zeros(2), FIVE[:2], None, parameters, find_update_rule("<a>", own))


def test_unknown_and_foreign_kinds() -> None:
    assert find_update_rule("mean") is None
    assert find_update_rule("krum") is None
    with pytest.raises(InputError, match="did you mean 'median'"):
        find_update_rule("medain")
    with pytest.raises(InputError, match="'os:getcwd' is not built in"):
        find_update_rule("os:getcwd")


def test_what_does_not_fit_is_rejected() -> None:
    rejected: tuple[tuple[dict[str, Any], str], ...] = (
        ({"kind": 3}, "aggregation.kind"),
        ({"trim": 0.5}, "less than 0.5"),
        ({"trim": -0.1}, "aggregation.trim"),
        ({"clip": 0.0}, "aggregation.clip"),
    )
    for bad, complaint in rejected:
        with pytest.raises(InputError, match=complaint):
            AggregationParameters(**bad)
    odd = replace(FIVE[2], update=SparseUpdate(9, torch.tensor([1], dtype=torch.int32), torch.ones(1)))
    with pytest.raises(InputError, match=r"device 2: 9 entries, .* 2"):
        robust_aggregate(zeros(2), [*FIVE[:2], odd], None, AggregationParameters("median"))
