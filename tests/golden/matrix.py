"""The tiny experiments that `compare_commits` runs with two commits: changes of `examples/tiny.toml`.

Uses nothing of cfel, so that the same list serves commits before and after anything moves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SCHEMES = (
    *(
        "hcef",
        "hcef_plus",
        "cef",
        "cef_f",
        "cef_c",
        "mll_sgd",
        "fedavg",
        "hier_fedavg",
        "p_fedavg",
        "sd_feel",
    ),
    *("matcha", "oort", "anycost", "fedluck", "nori", "static", "fedlamp", "fedpaq", "adaptive_k"),
    *("adaptive_tau", "cost_effective", "talk_or_work", "sd_feel_hetero"),
)
ALGORITHMS = (
    *("sgd", "adam", "adamw", "fedprox", "scaffold", "feddyn", "fednova", "ditto", "shared_momentum"),
    "fedbalancer",
)
COMPRESSORS = ("topk", "randomk", "jl", "quantise", "uveqfed", "atomo")

Changes = Mapping[str, object]
_REALISED: Changes = {"simulation.accounting": "realised"}


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        name: unique; for `--except` and `--only`.
        changes: keys of the experiment, and their values as `--set` takes them.
        stop: whether the run ends after its first round, and is then resumed.
        ray: whether it needs Ray.
    """

    name: str
    changes: Changes
    stop: bool = False
    ray: bool = False


def list_cases() -> list[Case]:
    """All cases."""
    return [*_list_schemes(), *_list_learning(), *_list_systems(), *_list_engines(), *_list_resumed()]


def _list_schemes() -> Iterator[Case]:
    for name in SCHEMES:
        yield Case(name, {"scheme.name": name})
        yield Case(f"{name} batched", {"scheme.name": name, "simulation.engine": "batched"})
    for name in ("hcef", "cef"):
        for key, value in (
            *(("steps", "whole"), ("steps", "small_batches"), ("gossip", "edge_round")),
            ("slow_clocks", True),
        ):
            yield Case(f"{name} {key}={value}", {"scheme.name": name, f"scheme.{key}": value})
    yield Case("hcef alternating", {"scheme.solver": "alternating"})
    yield Case("mll_sgd literal", {"scheme.name": "mll_sgd", "scheme.options.literal": True})
    for engine in ("threads", "batched"):
        small = {"scheme.name": "hcef_plus", "scheme.steps": "small_batches", "simulation.engine": engine}
        yield Case(f"hcef_plus small_batches {engine}", small)
    for switch in ("efficiency", "error_feedback", "curve", "frequency", "progress"):
        off = {"scheme.name": "hcef_plus", f"scheme.options.{switch}": False}
        yield Case(f"hcef_plus {switch}=false", off)


def _list_learning() -> Iterator[Case]:
    for algorithm in ALGORITHMS:
        momentum = 0.9 if algorithm in ("sgd", "fedprox", "shared_momentum") else 0.0
        local = {"local.algorithm": algorithm, "local.momentum": momentum}
        if algorithm in ("adam", "adamw"):
            local["local.learning_rate"] = 0.002
        for scheme in ("hcef", "hcef_plus"):
            yield Case(f"{algorithm} {scheme}", {**local, "scheme.name": scheme})
    for compressor in COMPRESSORS:
        for engine in ("threads", "batched"):
            kind = {"compression.kind": compressor, "simulation.engine": engine}
            yield Case(f"{compressor} {engine}", kind)
        feedback = {"compression.kind": compressor, "compression.error_feedback": True}
        wire = {**_REALISED, "simulation.uploads": "wire"}
        yield Case(f"{compressor} feedback wire", {**feedback, **wire})
    yield Case("no compression", {"compression.kind": "none", "scheme.name": "cef"})
    for rule in ("trimmed_mean", "median", "clipped"):
        yield Case(
            f"aggregation {rule}", {"aggregation.kind": rule, "fleet.clusters": 1, "aggregation.trim": 0.3}
        )
    for name in ("momentum", "fedadam", "fedyogi"):
        yield Case(f"edge {name}", {"aggregation.optimiser": name, "aggregation.learning_rate": 0.1})
    yield Case("average", {"aggregation.average": 0.5})
    for steps in ("systematic", "whole", "small_batches"):
        yield Case(f"local.steps {steps}", {"local.steps": steps})
    # The default scheme plans batches, so it rejects layers.
    yield Case("local.steps last_layers", {"local.steps": "last_layers", "scheme.name": "cef_f"})
    yield Case("fresh estimates", {"local.estimator": "fresh", "local.fresh_batches": 3})
    yield Case("nesterov", {"local.nesterov": True, "local.weight_decay": 0.001, "local.clip_gradient": 1.0})
    yield Case("momentum reset", {"local.momentum_state": "reset"})
    yield Case("cosine", {"local.schedule": "cosine", "local.warmup": 0.3, "local.schedule_by": "budget"})
    yield Case("personal", {"model.personal": ["dense2.*"], "simulation.device_accuracy": "every"})
    yield Case("shards", {"data.partition": "shards", "data.held_out": 0.2})
    yield Case("cnn", {"model.name": "small_cnn", "data.partition": "iid"})
    yield Case("batch norm", {"model.name": "batch_norm:build"})


def _list_systems() -> Iterator[Case]:
    yield Case("literal channel", {"fleet.conditions.channel_floor": 0.0})
    classes = {"pixel-4": 0.5, "raspberry-pi-4": 0.5}
    hardware = {"kind": "classes", "classes": classes, "flops_per_sample": 1e6, "jitter": 0.3}
    yield Case("classes", {"fleet.conditions": hardware})
    yield Case("sampled", {"fleet.participation": 0.5})
    yield Case("sampled by samples", {"fleet.participation": 0.5, "fleet.participation_by": "samples"})
    yield Case("away", {"fleet.availability.away_probability": 0.3})
    yield Case("wrong estimates", {"fleet.estimate_error": 0.3})
    yield Case("battery", {"fleet.battery_joules": 60.0})
    yield Case("uneven", {"fleet.clusters": [3, 2, 1], "topology.weights": "size"})
    yield Case("random graph", {"topology.kind": "erdos-renyi", "topology.joules_per_bit": 1e-6})
    yield Case("stop at budget", {"rounds.stop": "budget", "budget.share_of_cef": 0.4, "scheme.name": "cef"})
    yield Case("tight", {"budget.share_of_cef": 0.2, "scheme.on_unreachable": "minimum"})
    yield Case("charged parameters", {"model.charged_parameters": 20000})


def _list_engines() -> Iterator[Case]:
    yield Case("auto", {"simulation.engine": "auto"})
    yield Case("two workers", {"simulation.workers": 2})
    for scheme in ("hcef", "cef", "hcef_plus"):
        buffer = {"scheme.name": scheme, "aggregation.buffer": 1, **_REALISED}
        yield Case(f"buffer {scheme}", buffer)
    yield Case("realised", _REALISED)
    yield Case("evaluate mean", {"simulation.evaluate_on": "mean", "simulation.evaluate_samples": 50})
    for scheme in ("hcef", "hcef_plus"):
        yield Case(f"ray {scheme}", {"simulation.engine": "ray", "scheme.name": scheme}, ray=True)


def _list_resumed() -> Iterator[Case]:
    for name, changes in (
        ("hcef", {}),
        ("hcef batched", {"simulation.engine": "batched"}),
        ("hcef_plus", {"scheme.name": "hcef_plus"}),
        ("oort", {"scheme.name": "oort"}),
        ("nori", {"scheme.name": "nori"}),
        ("scaffold", {"local.algorithm": "scaffold", "local.momentum": 0.0}),
        ("ditto", {"local.algorithm": "ditto", "local.momentum": 0.0}),
        ("buffer", {"aggregation.buffer": 1, **_REALISED}),
        ("personal", {"model.personal": ["dense2.*"]}),
        ("fedadam", {"aggregation.optimiser": "fedadam", "aggregation.average": 0.5}),
        ("feedback", {"compression.error_feedback": True}),
        ("batch norm", {"model.name": "batch_norm:build"}),
    ):
        yield Case(f"resumed {name}", changes, stop=True)
