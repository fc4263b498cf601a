"""Computes the golden values: one function per file of `values/`, each from a case's name to plain values."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from tests.golden import parts
from tests.golden.entries import (
    ALGORITHMS,
    COMPRESSORS,
    PLAN_COLUMNS,
    SCHEMES,
    Experiment,
    RoundProblem,
    Setting,
    draw_uniforms,
    dry_run,
    make_generator,
    make_key,
    make_observation,
    pack_update,
    read_clock,
    read_shares,
    simulate,
    solve,
)

Cases = dict[str, Any]
Table = Mapping[str, Any]

FILES = Path(__file__).parent / "files"
_SHOWN = 4
_BASE: Table = {
    "name": "golden",
    "seed": 7,
    "rounds": {"global": 2, "edge": 2, "local": 4},
    "fleet": {"devices": 6, "clusters": 3},
    "model": {"name": "mlp", "parameters": 4810},
}
# The channel of the paper as printed, in which an upload may take hours.
_LITERAL = {
    "kind": "random",
    "alpha_joules": 1.5,
    "bandwidth_megahertz": [0.0004, 0.002],
    "channel_floor": 0.0,
}
_CLASSES = {
    "kind": "classes",
    "classes": {"pixel-4": 0.4, "raspberry-pi-4": 0.35, "jetson-nano": 0.25},
    "flops_per_sample": 123.9e6,
    "batch": 10,
    "jitter": 0.3,
}
FLEETS: Mapping[str, Table] = {
    "floored": {},
    "literal": {"conditions": _LITERAL},
    "classes": {"conditions": _CLASSES},
    "counts": {
        "conditions": {**_CLASSES, "classes": {"pixel-6": 4, "x86-mini-pc": 2}, "battery_share": 0.001},
    },
    "trace": {"conditions": {"kind": "trace", "file": str(FILES / "trace.csv")}},
    "held": {"conditions": {"kind": "trace", "file": str(FILES / "trace.csv"), "after_end": "hold"}},
    "sampled": {"devices": 9, "participation": 0.5},
    "sampled_by_samples": {
        "devices": 9,
        "participation": 0.5,
        "participation_by": "samples",
        "participation_per": "global_round",
    },
    "away": {"availability": {"away_probability": 0.3, "away": [[1, 0, 0]]}},
    "intervals": {"availability": {"file": str(FILES / "availability.csv"), "round_seconds": 60.0}},
    "uneven": {"devices": 7, "clusters": [4, 2, 1], "battery_joules": 60.0},
    "wrong": {"estimate_error": 0.3},
    "never": {"conditions": {**_LITERAL, "channel_floor": 0.01, "redraw": "never", "clock_static": 0.2}},
}
VARIANTS: Mapping[str, Table] = {
    "whole_steps": {"steps": "whole"},
    "small_batches": {"steps": "small_batches"},
    "edge_gossip": {"gossip": "edge_round"},
    "slow_clocks": {"slow_clocks": True},
}
SCHEME_TABLES: Mapping[str, Table] = {
    **{name: {"name": name} for name in SCHEMES},
    "hcef alternating": {"name": "hcef", "solver": "alternating"},
    "hcef minimum": {"name": "hcef", "on_unreachable": "minimum", "rho_min": 0.3},
    "hcef noise": {"name": "hcef", "noise_weight": 0.3, "theta_min": 0.05},
    "cef_f alternating": {"name": "cef_f", "solver": "alternating"},
    "mll_sgd literal": {"name": "mll_sgd", "options": {"literal": True}},
    "hcef_plus whole_steps": {"name": "hcef_plus", "steps": "whole"},
    "hcef_plus caps": {"name": "hcef_plus", "options": {"efficiency": False, "frequency": False}},
    "hcef_plus p2": {"name": "hcef_plus", "options": {"progress": False, "dense_gossip": False}},
    "hcef_plus lossy": {"name": "hcef_plus", "options": {"error_feedback": False, "gossip_steps": 1}},
    "hcef_plus small_batches": {"name": "hcef_plus", "steps": "small_batches"},
    "cef_f last_layers": {"name": "cef_f", "steps": "last_layers"},
    "fedpaq few": {"name": "fedpaq", "options": {"share": 0.3, "theta": 0.25, "compressor": "atomo"}},
    "sd_feel_hetero early": {"name": "sd_feel_hetero", "options": {"deadline": 0.0, "steps": 1}},
    "cost_effective time": {"name": "cost_effective", "options": {"time_weight": 1.0}},
    "oort few": {"name": "oort", "options": {"share": 0.3, "penalty": 1.0}},
    "matcha few": {"name": "matcha", "options": {"links": 0.3}},
    "nori floor": {"name": "nori", "options": {"floor": 0.5}},
    **{f"{name}+{each}": {"name": name, **VARIANTS[each]} for name in ("hcef", "cef") for each in VARIANTS},
}
# Without those that only differ from another one in the conditions, which have their own values.
_PLANNED_FLEETS = ("floored", "literal", "classes", "counts", "trace", "sampled", "away", "uneven", "wrong")


def make_experiment(**sections: Any) -> Experiment:
    """The golden experiment with sections changed; tables are merged key by key."""
    merged = dict(_BASE)
    for name, section in sections.items():
        both = isinstance(section, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = {**merged[name], **section} if both else section
    return Experiment(**merged)


def collect_plans() -> Cases:
    """Dry runs: plans, costs and ledgers of every scheme, on several fleets."""
    found = {}
    for name, scheme in SCHEME_TABLES.items():
        for fleet in _choose_fleets(name):
            experiment = make_experiment(scheme=scheme, fleet=FLEETS[fleet])
            found[f"{name}, {fleet}"] = _describe_dry_run(experiment.build_setting(), 1.0, 1.0)
    for name in ("hcef", "hcef_plus small_batches", "anycost", "nori"):
        setting = make_experiment(scheme=SCHEME_TABLES[name], budget={"share_of_cef": 0.3}).build_setting()
        found[f"{name}, tight and noisy"] = _describe_dry_run(setting, 4.0, 0.5)
    for key, value in (("joules_per_bit", 1e-6), ("kind", "star"), ("weights", "size")):
        hcef = {"name": "hcef"}
        setting = make_experiment(scheme=hcef, topology={key: value}, fleet={"devices": 7}).build_setting()
        found[f"hcef, topology.{key}"] = _describe_dry_run(setting, 1.0, 1.0)
    for algorithm in ALGORITHMS:
        setting = make_experiment(scheme={"name": "cef"}, local=_choose(algorithm)).build_setting()
        found[f"cef, {algorithm}"] = _describe_costs(setting)
    return found


def _choose_fleets(scheme: str) -> tuple[str, ...]:
    if scheme in ("hcef", "hcef_plus", "hcef_plus small_batches"):
        return _PLANNED_FLEETS
    return ("floored", "literal", "away") if scheme in SCHEMES else ("floored",)


def _choose(algorithm: str) -> Table:
    """The section of an algorithm; only some work with momentum."""
    with_momentum = ("sgd", "fedprox", "shared_momentum")
    return {"algorithm": algorithm, "momentum": 0.9 if algorithm in with_momentum else 0.0}


def _describe_dry_run(setting: Setting, sigma2: float, g2: float) -> Any:
    rounds = []
    for each in dry_run(setting, sigma2, g2):
        plans = [_describe_plan(plan) for plan in each.plans]
        rounds.append({"plans": plans, **_describe_spent(each)})
    return {"budget": _plain(setting.budget), "rounds": rounds}


def _describe_costs(setting: Setting) -> Any:
    """Of algorithms, which change what a step and an exchange cost, but no plan of CEF."""
    rounds = [_describe_spent(each) for each in dry_run(setting)]
    return {"budget": _plain(setting.budget), "rounds": rounds}


def _describe_spent(each: Any) -> Any:
    cost, ledger = each.cost, each.ledger
    # Not who was slowest: plans make devices finish together, and the last bit decides between them.
    round_cost = {"seconds": cost.seconds, "clusters": _plain(cost.cluster_seconds), "joules": cost.joules}
    spent = {"seconds": ledger.seconds, "joules": ledger.joules}
    # Nothing of the next global round yet.
    assert ledger.elapsed_joules == 0
    assert not any(ledger.elapsed_seconds)
    return {"cost": round_cost, "ledger": spent}


def _describe_plan(plan: Any) -> Any:
    numbers = {name: getattr(plan, name) for name in ("sigma2", "g2", "objective", "lower_bound", "gap")}
    shares = {"rho": plan.rho, "theta": plan.theta, "clock": read_clock(plan), "weight": plan.weight}
    words = {"feasible": plan.feasible, "violations": list(plan.violations)}
    # Many plans have no clocks, no weights and nothing to complain about.
    return {
        name: each for name, each in _plain({**shares, **numbers, **words}).items() if each not in (None, [])
    }


def collect_observed() -> Cases:
    """Plans of every scheme from estimates, losses and kept energy that differ between devices."""
    found = {}
    for name, table in SCHEME_TABLES.items():
        setting = make_experiment(scheme=table, fleet={"devices": 8}).build_setting()
        device = np.arange(8)
        kept = np.array(setting.scheme.device_overrides.kept_energy_at)
        state = setting.scheme.init()
        plans = []
        for edge_round in range(2):
            seen = make_observation(
                setting,
                edge_round,
                sigma2=1.0 + (device * 3 % 5) / 4,
                g2=0.5 + (device * 5 % 7) / 8,
                losses=1.0 + (device * 3 % 7) / 8 - edge_round / 4,
                samples=20.0 + 5 * (device % 4),
                kept_energy=kept * (2 - kept) if kept.size else None,
            )
            plan, state = setting.scheme.plan(state, seen)
            plans.append(_describe_plan(plan))
        found[name] = {"plans": plans, "state": _plain(state)}
    return found


def collect_problems() -> Cases:
    """P2 by both methods, on problems drawn from whole numbers; some cannot be met."""
    found = {}
    for number in range(12):
        problem = make_problem(number)
        for method in ("joint", "alternating"):
            solution = solve(problem, method)
            fields = _plain(solution)
            # P2 has no clocks; the stored values are older than this field.
            assert fields.pop("clock") is None
            found[f"{number} {method}"] = {**fields, "gap": solution.gap}
    return found


def make_problem(number: int) -> RoundProblem:
    """A problem of three to fourteen devices."""
    devices, clusters = 3 + number, 1 + number % 4
    draw = make_generator(number, "golden problems").integers
    mu, nu = (draw(1, 400, devices) / 2 for _ in range(2))
    alpha, power = draw(0, 64, devices) / 16, draw(1, 16, devices) / 16
    everything = 5 * mu + nu
    seconds = np.full(clusters, (0.1, 0.4, 0.7)[number % 3] * everything.max())
    joules = (0.2, 0.5, 0.8)[number // 3 % 3] * float((5 * alpha + power * nu).sum())
    return RoundProblem(
        tau=5,
        sigma2=float(draw(0, 9) / 4),
        g2=float(draw(1, 9) / 4),
        mu=mu,
        alpha=alpha,
        nu=nu,
        power=power,
        cluster=np.arange(devices) % clusters,
        time_cap=seconds if number % 5 else np.full(clusters, np.inf),
        energy_cap=joules if number % 7 else np.inf,
        noise_weight=(1.0, 0.3)[number % 2],
        on_unreachable="stretch" if number % 2 else "minimum",
        battery=draw(1, 40, devices) * 4.0 if number % 6 == 1 else None,
    )


def collect_conditions() -> Cases:
    """What each fleet's devices meet in every edge round, and who takes part."""
    found = {}
    for name, fleet in FLEETS.items():
        extra = {"model": {"name": "mlp"}, "data": _NUMBERED} if name == "sampled_by_samples" else {}
        setting = make_experiment(
            fleet=fleet, budget={"seconds": 1e9, "joules": 1e9}, **extra
        ).build_setting()
        rounds = [
            _describe_conditions(setting.conditions(global_round, edge_round))
            for global_round in range(2)
            for edge_round in range(2)
        ]
        found[name] = {"cluster": _plain(setting.fleet.cluster), "rounds": rounds}
    return found


def _describe_conditions(now: Any) -> Any:
    names = ("mu", "alpha", "nu", "power", "available", "weight", "clock_static", "clock_exponent")
    return {name: _plain(getattr(now, name)) for name in names}


_NUMBERED = {"name": "tests.golden.parts:numbered", "partition": "iid", "batch": 10}
_TOPOLOGIES: Mapping[str, Table] = {
    **{kind: {"kind": kind} for kind in ("ring", "line", "star", "grid", "complete")},
    "erdos-renyi": {"kind": "erdos-renyi", "p_edge": 0.4},
    "edges": {"kind": "edges", "edges": [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [0, 3]]},
    "ring by size": {"kind": "ring", "weights": "size"},
}


def collect_topologies() -> Cases:
    """Links, mixing weights and seconds of each topology, and the links that MATCHA draws."""
    fleet = {"devices": 13, "clusters": [4, 3, 2, 2, 1, 1]}
    found: Cases = {}
    for name, topology in _TOPOLOGIES.items():
        setting = make_experiment(fleet=fleet, topology=topology).build_setting()
        found[name] = {**_describe_backhaul(setting.backhaul), "seconds": _plain(setting.backhaul_seconds)}
    setting = make_experiment(fleet=fleet, scheme={"name": "matcha"}).build_setting()
    places = [(global_round, done, 0) for global_round in range(3) for done in (1, 2)]
    found["matcha"] = [_plain(setting.backhaul_at(*place).edges) for place in places]
    for scheme in ("fedavg", "p_fedavg", "hier_fedavg", "hcef_plus"):
        world = make_experiment(
            scheme={"name": scheme}, fleet={"devices": 7}, data={**_NUMBERED, "partition": "writer"}
        ).build_world()
        found[f"{scheme}, weighted"] = _describe_backhaul(world.setting.backhaul)
    return found


def _describe_backhaul(backhaul: Any) -> Any:
    weights = {"weights": _plain(backhaul.weights), "target": _plain(backhaul.target), "zeta": backhaul.zeta}
    return {"edges": _plain(backhaul.edges), **weights}


def collect_draws() -> Cases:
    """Random streams, partitions, and the batches that devices train on: exact, on every machine."""
    found: Cases = {}
    for index in ((), (0,), (3, 1)):
        for purpose in ("conditions", "availability", "participation"):
            found[f"uniforms {purpose} {index}"] = digest(draw_uniforms(7, purpose, index, 5, 4))
    found["keys"] = [str(make_key(seed, "steps", 1, 0, 2)) for seed in (0, 1, -3, 2**70)]
    found["permutation"] = _plain(make_generator(7, "batches", 0, 1, 2).permutation(12))
    found["digits split"] = digest(_load_targets())
    for name, data in _PARTITIONS.items():
        world = make_experiment(data={**_NUMBERED, **data}).build_world()
        shares = read_shares(world)
        found[f"partition {name}"] = {
            "sizes": [len(each) for each in shares],
            **digest(np.concatenate(shares)),
        }
    for steps in ("bernoulli", "systematic", "whole", "small_batches"):
        found[f"batches {steps}"] = _record_batches({"steps": steps})
    found["batches fresh"] = _record_batches({"estimator": "fresh", "fresh_batches": 3})
    found["batches scaffold"] = _record_batches({"algorithm": "scaffold", "momentum": 0.0})
    return found


_PARTITIONS: Mapping[str, Table] = {
    "iid": {"partition": "iid"},
    "dirichlet 1.0": {"partition": "dirichlet", "beta": 1.0},
    "dirichlet 0.05": {"partition": "dirichlet", "beta": 0.05, "least": 5},
    "writer": {"partition": "writer"},
    "shards": {"partition": "shards", "shards": 3},
    "held out": {"partition": "iid", "held_out": 0.25},
}


def _load_targets() -> Any:
    return make_experiment(data={"name": "digits"}).load_task().data.train_targets.numpy()


def _record_batches(local: Table) -> Any:
    """The samples of every batch, as the model of a simulation meets them."""
    experiment = make_experiment(
        data=_NUMBERED,
        model={"name": "tests.golden.parts:recorder", "parameters": None},
        scheme={"name": "tests.golden.parts:fixed"},
        local={"learning_rate": 1e-3, **local},
        simulation={"engine": "threads", "workers": 1},
    )
    simulation = simulate(experiment)
    # What was tried before the first round does not count.
    parts.SEEN.clear()
    for _ in simulation:
        pass
    shares = read_shares(experiment.build_world())
    # By device, as the order between devices is up to the engine.
    own = [[batch for batch in parts.SEEN if batch[0] in set(share.tolist())] for share in shares]
    numbers = [number for batches in own for batch in batches for number in (len(batch), *batch)]
    return {"batches": [len(batches) for batches in own], **digest(np.array(numbers))}


def collect_packed() -> Cases:
    """The bytes of each compressor, for vectors made of whole numbers."""
    found = {}
    for size in (7, 1000, 2500):
        vector = make_vector(size)
        for name, compress in COMPRESSORS.items():
            for theta in (0.01, 0.125, 0.3, 0.75, 1.0):
                update = compress(vector, theta, make_key(7, "compression", size))
                packed, dense = pack_update(update), torch.zeros(size)
                update.add_to(dense, 1.0)
                found[f"{name} {size} {theta}"] = {
                    "bits": update.wire_bits,
                    **digest(np.frombuffer(packed, np.uint8)),
                    "rebuilt": hashlib.sha256(dense.numpy().astype("<f4").tobytes()).hexdigest(),
                }
    return found


def make_vector(size: int) -> torch.Tensor:
    """Sums and halves of such numbers are exact in float32, in any order; some magnitudes are equal."""
    number = np.arange(size)
    whole = (number * 7919 + 31) % 4093 - 2046
    return torch.from_numpy((whole / 64).astype(np.float32))


_RUN_FIELDS = (
    *("round", "seconds_expected", "joules_expected", "seconds_realised", "joules_realised", "wire_bytes"),
    *("straggler", "slowest_cluster", "devices_taking_part", "steps_planned", "steps_taken"),
    *("upload_bytes_planned", "upload_bytes", "backhaul_bytes"),
)


def _list_runs() -> Iterator[tuple[str, Table]]:
    for name in ALGORITHMS:
        yield f"{name}, threads", {"local": _choose(name)}
    for engine in ("threads", "batched"):
        place = {"engine": engine, "accounting": "realised", "uploads": "wire"}
        for name in COMPRESSORS:
            yield f"{name}, {engine}", {"compression": {"kind": name}, "simulation": place}
        rules = ("systematic", "whole", "small_batches", *(("last_layers",) if engine == "threads" else ()))
        for steps in rules:
            yield f"{steps}, {engine}", {"local": {"steps": steps}, "simulation": place}
    realised = {"accounting": "realised"}
    yield "error feedback", {"compression": {"kind": "topk", "error_feedback": True}}
    yield "personal", {"model": {"name": "mlp", "parameters": None, "personal": ["dense2.*"]}}
    yield "buffer", {"aggregation": {"buffer": 1}, "simulation": {"engine": "threads", **realised}}
    yield "fedadam", {"aggregation": {"optimiser": "fedadam"}}
    yield "median", {"aggregation": {"kind": "median"}}
    yield "away", {"fleet": FLEETS["away"]}
    yield "trace", {"fleet": FLEETS["trace"]}
    yield "battery", {"fleet": FLEETS["uneven"]}


def collect_runs() -> Cases:
    """What simulations of fixed plans count: steps, bytes, seconds, joules; whatever the model learns."""
    found = {}
    for name, sections in _list_runs():
        defaults = {
            "data": {"name": "digits", "batch": 10},
            "scheme": {"name": "tests.golden.parts:fixed"},
            "simulation": {"engine": "threads"},
        }
        merged = {**defaults, **sections}
        merged["simulation"] = {"workers": 1, "evaluate_samples": 20, **merged["simulation"]}
        simulation = simulate(make_experiment(**merged))
        rounds = []
        for record in simulation:
            plans = simulation.plans
            columns = {column: plans.column(column).to_pylist() for column in PLAN_COLUMNS}
            rounds.append({**{each: getattr(record, each) for each in _RUN_FIELDS}, "devices": columns})
        found[name] = rounds
    return found


def digest(values: ArrayLike) -> dict[str, Any]:
    """An array as the SHA-256 of its bytes, with a few numbers that make a failure readable."""
    array = np.asarray(values)
    kind = "<f8" if np.issubdtype(array.dtype, np.floating) else "<i8"
    content = np.ascontiguousarray(array, dtype=kind).tobytes()
    first = [array.shape, array.reshape(-1)[:_SHOWN]]
    return {
        "shape": _plain(first[0]),
        "first": _plain(first[1]),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _plain(value: Any) -> Any:
    """Numbers, lists and tables only, as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return value


COLLECTORS: Mapping[str, Callable[[], Cases]] = {
    "plans": collect_plans,
    "observed": collect_observed,
    "problems": collect_problems,
    "conditions": collect_conditions,
    "topologies": collect_topologies,
    "draws": collect_draws,
    "packed": collect_packed,
    "runs": collect_runs,
}
