"""The local algorithms that come with cfel, and the registry that finds one by its name.

Each is a builder `LocalParameters -> LocalAlgorithm`. Most are SGD with one hook replaced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.optim.sgd import sgd as torch_sgd

from cfel import validation
from cfel.errors import InputError, unknown_name
from cfel.learning.edge_rule import EdgeRound, EdgeRule
from cfel.learning.local.algorithm import LocalAlgorithm, LocalParameters, LocalRun, TrainingParameters
from cfel.learning.models.flat import Tensors
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, check_call, check_result, resolve
from cfel.system.batch_shares import FORWARD_SHARE


def sgd(local: LocalParameters) -> LocalAlgorithm:
    """SGD with momentum (Polyak 1964; Nesterov 1983) and weight decay: the paper's local steps.

    m ← βm + g + decay·x,  x ← x − ηm,  and with `nesterov`  x ← x − η(g + decay·x + βm).

    Other algorithms build on it with `dataclasses.replace`.
    """

    def step(x: Tensor, gradient: Tensor, memory: Tensors, rate: float) -> None:
        momentum = [memory["momentum"]] if local.momentum else ()
        apply_momentum_step([x], [gradient], momentum, local, rate)

    def step_parts(
        x: Sequence[Tensor], gradient: Sequence[Tensor], memory: Mapping[str, Sequence[Tensor]], rate: float
    ) -> None:
        apply_momentum_step(x, gradient, memory.get("momentum", ()), local, rate)

    return LocalAlgorithm(step, memory=("momentum",) if local.momentum else (), step_parts=step_parts)


def _reject_momentum(local: LocalParameters) -> None:
    """Raises an `InputError` for algorithms in which a step must be the rate times the gradient."""
    if local.momentum or local.weight_decay:
        raise InputError(
            f"local.algorithm = {local.algorithm!r}: needs local.momentum = 0 and local.weight_decay = 0"
        )


def apply_momentum_step(
    parameters: Sequence[Tensor],
    gradient: Sequence[Tensor],
    momentum: Sequence[Tensor],
    local: LocalParameters,
    rate: float,
) -> None:
    """Applies one step of SGD, in place and in one pass over memory; may overwrite the gradient."""
    with torch.no_grad():
        # Torch's own function without the optimiser around it, which would keep state between devices.
        torch_sgd(
            list(parameters),
            [_match_strides(part, parameter) for part, parameter in zip(gradient, parameters, strict=True)],
            list(momentum) or [None] * len(parameters),
            fused=True,
            weight_decay=local.weight_decay,
            momentum=local.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=local.nesterov,
            maximize=False,
        )


def _match_strides(part: Tensor, parameter: Tensor) -> Tensor:
    """Gives a gradient the strides of its parameter: the fused step ignores strides, so they must agree."""
    if part.stride() == parameter.stride():
        return part
    return torch.empty_like(parameter).copy_(part)


def adam(local: LocalParameters) -> LocalAlgorithm:
    """Adam, which adds `weight_decay` · x to the gradient.

    m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  x ← x − η (m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε).
    The device remembers m, v and the number t of steps. Options: `beta1`, `beta2`, `epsilon`.

    Kingma, Ba: Adam: a method for stochastic optimization, ICLR 2015.
    """
    return _build_adam(local, decoupled=False)


def adamw(local: LocalParameters) -> LocalAlgorithm:
    """Adam with decoupled weight decay: each step first takes x ← x − η · weight_decay · x.

    Loshchilov, Hutter: Decoupled weight decay regularization, ICLR 2019.
    """
    return _build_adam(local, decoupled=True)


def _build_adam(local: LocalParameters, *, decoupled: bool) -> LocalAlgorithm:
    beta1 = local.read_option("beta1", 0.9, least=0, below=1)
    beta2 = local.read_option("beta2", 0.999, least=0, below=1)
    epsilon = local.read_option("epsilon", 1e-8, above=0)
    decay = local.weight_decay

    def step(x: Tensor, gradient: Tensor, memory: Tensors, rate: float) -> None:
        first, second, steps = memory["first_moment"], memory["second_moment"], memory["steps"]
        if decoupled:
            x.mul_(1 - rate * decay)
        elif decay:
            gradient.add_(x, alpha=decay)
        steps.add_(1)
        taken = int(steps.item())
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = (1 - beta2**taken) ** 0.5
        x.addcdiv_(first, second.sqrt().div_(scale).add_(epsilon), value=-rate / (1 - beta1**taken))

    return LocalAlgorithm(
        step,
        memory=("first_moment", "second_moment"),
        counters=("steps",),
        options=("beta1", "beta2", "epsilon"),
    )


def fedprox(local: LocalParameters) -> LocalAlgorithm:
    """FedProx: SGD on the loss plus μ/2 · ‖x − edge model‖², which keeps devices with unlike data together.

    Option: `mu` ≥ 0; with 0 it is SGD. The paper's inexact local solutions are here the devices' shares ρ of
    the steps.

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks, MLSys 2020.
    """
    mu = local.read_option("mu", 0.01, least=0)

    def pull(run: LocalRun, gradient: Tensor) -> None:
        gradient.add_(run.parameters - run.start, alpha=mu)

    return replace(sgd(local), change_gradient=pull, options=("mu",))


def scaffold(local: LocalParameters) -> LocalAlgorithm:
    """SCAFFOLD: SGD with control variates, which correct the drift of devices with unlike data.

    Device i adds c − c_i to its gradient: c_i is the mean gradient along its last edge round, c the mean over
    all devices, which its edge server keeps. Afterwards c_i ← c_i − c − Δ_i/(K_i η), with its update Δ_i as
    sent and its K_i steps (the paper's option II). The edge server knows Δ_i and K_i, so it changes c by the
    mean of the same differences, and nothing but the update is uploaded. c goes to devices with the model,
    and to neighbours in gossip, where it is charged. If an upload is lost, c misses one device's difference.
    Without momentum only, as Δ_i/(K_i η) would not be a mean gradient.

    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: stochastic controlled averaging for federated
    learning, ICML 2020.
    """
    _reject_momentum(local)

    def correct(run: LocalRun, gradient: Tensor) -> None:
        gradient.add_(run.edge_memory["variate"]).sub_(run.memory["variate"])

    def remember(run: LocalRun, update: Tensor) -> None:
        if run.steps and run.rate:
            run.memory["variate"].sub_(run.edge_memory["variate"])
            run.memory["variate"].sub_(update, alpha=1 / (run.steps * run.rate))

    def change(found: EdgeRound, memory: Tensors) -> Tensor:
        if found.rate:
            memory["variate"].mul_(1 - found.share * found.active)
            memory["variate"].sub_(found.update_per_step, alpha=found.share / found.rate)
        return found.update

    return replace(
        sgd(local),
        lasting=("variate",),
        change_gradient=correct,
        sent=remember,
        edge=EdgeRule(change, memory=("variate",), per_step=True),
    )


def feddyn(local: LocalParameters) -> LocalAlgorithm:
    """FedDyn: SGD on a loss that changes in every round so that devices' optima move towards the common one.

    Device i adds −g_i + α(x − edge model) to its gradient, and after the edge round takes g_i ← g_i − αΔ_i,
    with its update Δ_i as sent. The edge server remembers the sum z of its mean updates, which is the mean of
    −g_i/α, and adds it to every change: x ← x + mean Δ_i + z. The paper has one server; here each cluster has
    one, and they gossip z as they gossip models. Option: `alpha` > 0.

    Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated learning based on dynamic
    regularization, ICLR 2021.
    """
    alpha = local.read_option("alpha", 0.01, above=0)

    def regularise(run: LocalRun, gradient: Tensor) -> None:
        gradient.sub_(run.memory["drift"]).add_(run.parameters - run.start, alpha=alpha)

    def remember(run: LocalRun, update: Tensor) -> None:
        run.memory["drift"].sub_(update, alpha=alpha)

    def change(found: EdgeRound, memory: Tensors) -> Tensor:
        return found.update + memory["total_drift"].add_(found.update, alpha=found.share)

    return replace(
        sgd(local),
        lasting=("drift",),
        change_gradient=regularise,
        sent=remember,
        edge=EdgeRule(change, memory=("total_drift",)),
        options=("alpha",),
    )


def fednova(local: LocalParameters) -> LocalAlgorithm:
    """FedNova: SGD whose updates count per step, so that devices that take more steps do not pull harder.

    The edge server adds T · Σ p_i Δ_i / τ_i instead of Σ p_i Δ_i: Δ_i is device i's update, τ_i its number of
    steps and T their weighted mean. Under HCEF, where devices take different shares ρ of the steps, the plain
    mean favours the data of fast devices. Without momentum only: with it, a step's share in the update is not
    1/τ_i.

    Wang, Liu, Liang, Joshi, Poor: Tackling the objective inconsistency problem in heterogeneous federated
    optimization, NeurIPS 2020.
    """
    _reject_momentum(local)

    def change(found: EdgeRound, _memory: Tensors) -> Tensor:
        return found.update_per_step * found.mean_steps

    return replace(sgd(local), edge=EdgeRule(change, per_step=True))


def ditto(local: LocalParameters) -> LocalAlgorithm:
    """Ditto: every device also trains a whole model of its own, which is pulled towards the edge model.

    The personal model v begins as the edge model. In every local step, v ← v − η (∇F(v) + λ (v − y)) on the
    batch of the step, with the edge model y at the beginning of the edge round. The edge model itself is
    trained as with SGD, to the same bits. With λ = 0, v is purely local training; a large λ keeps v near the
    edge model, and η λ must stay below 1. Option: `lambda` ≥ 0, 0.1 by default.

    Li, Hu, Beirami, Smith: Ditto: fair and robust federated learning through personalization, ICML 2021. The
    paper has a separate number of personal steps; here it is one per local step, on the same batch, so that ρ
    limits both. v is trained without momentum. Time and energy are charged for two gradients per step.
    Statistics of batch norm are the edge model's.
    """
    own_model = "personal_model"
    pull = local.read_option("lambda", 0.1, least=0)
    if pull * local.learning_rate >= 1:
        raise InputError(
            f"local.options.lambda = {pull:g}: with local.learning_rate = {local.learning_rate:g} it pulls "
            "personal models past the edge model; their product must be below 1"
        )

    def begin(run: LocalRun) -> None:
        # Only a device's first order finds zeros: nobody trains a model of zeros.
        if not run.memory[own_model].any():
            run.memory[own_model].copy_(run.start)

    def step_aside(run: LocalRun, _: Tensor) -> None:
        own = run.memory[own_model]
        change = run.gradient_at(own).add_(own - run.start, alpha=pull)
        own.sub_(change, alpha=run.rate)

    return replace(
        sgd(local),
        lasting=(own_model,),
        begin=begin,
        change_gradient=step_aside,
        options=("lambda",),
        personal_model=own_model,
        gradients=2,
    )


def shared_momentum(local: LocalParameters) -> LocalAlgorithm:
    """SGD whose momentum starts every edge round at the mean of the cluster's.

    A device's own momentum carries the noise of its batches and the bias of its data from edge round to edge
    round, and pulls its model away from the others' in every step. Averaging momentum along with the models
    removes both. Nothing more has to be uploaded: −Δ/(Kη), the mean update Δ over the mean number of steps K
    and the learning rate, is the mean momentum along the edge round, as far as it is sent. The edge server
    keeps it, sends it to devices with the model, and gossips it, where it is charged. What error feedback
    sends late counts as present momentum, so the learning rate must not fall then.

    Yu, Jin, Yang: On the linear speedup analysis of communication efficient momentum SGD for distributed
    non-convex optimization, ICML 2019, also average momentum, but upload it. Xu, Wang, Wang, Yao: FedCM,
    2021, send devices the mean update as a direction that stays the same in all steps of a round.
    """
    if not local.momentum:
        raise InputError("local.algorithm = 'shared_momentum': needs local.momentum > 0")

    def begin(run: LocalRun) -> None:
        run.memory["momentum"].copy_(run.edge_memory["mean_momentum"])

    def change(found: EdgeRound, memory: Tensors) -> Tensor:
        if found.rate and found.mean_steps:
            memory["mean_momentum"].copy_(found.update).div_(-found.rate * found.mean_steps)
        return found.update

    rule = EdgeRule(change, memory=("mean_momentum",), any_aggregate=True)
    return replace(sgd(local), begin=begin, edge=rule)


def fedbalancer(local: LocalParameters) -> LocalAlgorithm:
    """SGD on a part of every batch: mostly the samples with the largest losses, and some of the others.

    Options: `share` of a batch that is trained on, ½ by default, at least two samples; `hard`, the part of
    these that have the largest losses, ¾ by default; the rest is drawn from the others; `shared`, whether
    momentum is that of `shared_momentum`, false by default. Time and energy are charged for finding the
    losses, a third of a step, and for training on the part, so that a share above ⅔ saves nothing. σ² and G²
    are estimated from the samples used, so they are those of hard samples.

    Shin, Li, Liu, Lee: FedBalancer: data and pace control for efficient federated learning on heterogeneous
    clients, MobiSys 2022. Kept: samples are selected by their losses, hard ones first, with some easy ones
    among them. Not kept: the paper remembers the losses of all samples from earlier rounds, raises a loss
    threshold in the course of the run, and adapts the deadline of a round; here losses are those of the
    present model, and shares are fixed, so that what a step costs is known to plans.
    """
    share = local.read_option("share", 0.5, above=0, most=1)
    hard = local.read_option("hard", 0.75, least=0, most=1)
    shared = validation.check_switch("local.options.shared", local.options.get("shared", False))

    def choose(run: LocalRun, losses: Tensor) -> Tensor:
        wanted = min(len(losses), max(2, round(share * len(losses))))
        hardest = round(hard * wanted)
        draw = run.draw("samples")
        ranked = losses.argsort(descending=True, stable=True).cpu()
        rest = hardest + draw.permutation(len(losses) - hardest)[: wanted - hardest]
        # In random order: estimates compare the two halves.
        chosen = draw.permutation(np.concatenate([np.arange(hardest), rest]))
        return ranked[torch.from_numpy(chosen)].to(losses.device)

    return replace(
        shared_momentum(local) if shared else sgd(local),
        choose=choose,
        options=("share", "hard", "shared"),
        gradients=FORWARD_SHARE + share,
    )


AlgorithmBuilder: TypeAlias = Callable[[LocalParameters], LocalAlgorithm]

ALGORITHMS: Mapping[str, AlgorithmBuilder] = MappingProxyType(
    {
        "sgd": sgd,
        "adam": adam,
        "adamw": adamw,
        "fedprox": fedprox,
        "scaffold": scaffold,
        "feddyn": feddyn,
        "fednova": fednova,
        "ditto": ditto,
        "shared_momentum": shared_momentum,
        "fedbalancer": fedbalancer,
    }
)


def build_algorithm(local: LocalParameters, code: CodePolicy = BUILT_IN_ONLY) -> LocalAlgorithm:
    """Builds the algorithm that `[local]` names: built in, an entry point, or "module:function"."""
    name = local.algorithm
    builder: AlgorithmBuilder = resolve("algorithm", name, ALGORITHMS, ("local",), code=code)
    algorithm = builder(local)
    what = f"algorithm {name!r}"
    check_result(what, algorithm, LocalAlgorithm)
    if name not in ALGORITHMS:
        _check_functions(what, algorithm)
    if algorithm.train is not None and local.estimator == "fresh":
        raise InputError(
            f"local.estimator = 'fresh': {what} has its own training loop, whose gradients cannot be seen; "
            "use 'reuse', which takes σ² and G² from what the loop returns"
        )
    for option in local.options:
        if option not in algorithm.options:
            raise InputError(unknown_name(f"local.options of {what}", option, algorithm.options))
    return algorithm


def find_algorithm(training: TrainingParameters) -> LocalAlgorithm:
    return training.algorithm or build_algorithm(training.local)


def _check_functions(what: str, algorithm: LocalAlgorithm) -> None:
    hooks = (
        ("step", algorithm.step, ("x", "gradient", "memory", "rate")),
        ("train", algorithm.train, ("run",)),
        ("begin", algorithm.begin, ("run",)),
        ("choose", algorithm.choose, ("run", "losses")),
        ("change_gradient", algorithm.change_gradient, ("run", "gradient")),
        ("end", algorithm.end, ("run",)),
        ("sent", algorithm.sent, ("run", "update")),
    )
    for name, hook, takes in hooks:
        if hook is not None:
            check_call(f"{what}: {name}", hook, takes)
