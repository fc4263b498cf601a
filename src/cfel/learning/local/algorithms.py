"""The local algorithms that come with cfel, one file each, and how one is found by its name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor
from torch.optim.sgd import sgd as torch_sgd

from cfel.errors import InputError, unknown_name
from cfel.learning.edge_rule import EdgeRound, EdgeRule
from cfel.learning.local.algorithm import LocalAlgorithm, LocalRun, Memory
from cfel.learning.local.parameters import LocalParameters, TrainingParameters
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, check_call, check_result, resolve

# --------------------------------------------------------------------------------------------------
# SGD with momentum (Polyak 1964; Nesterov 1983 with `nesterov`) and weight decay: the paper's local
# steps.
#
# m ← βm + g + decay·x,  x ← x − ηm,  and with `nesterov`  x ← x − η(g + decay·x + βm)


def sgd(local: LocalParameters) -> LocalAlgorithm:
    """SGD; other algorithms build on it with `dataclasses.replace`."""

    def step(x: Tensor, gradient: Tensor, memory: Memory, rate: float) -> None:
        momentum = [memory["momentum"]] if local.momentum else ()
        apply_momentum_step([x], [gradient], momentum, local, rate)

    def step_parts(
        x: Sequence[Tensor], gradient: Sequence[Tensor], memory: Mapping[str, Sequence[Tensor]], rate: float
    ) -> None:
        apply_momentum_step(x, gradient, memory.get("momentum", ()), local, rate)

    return LocalAlgorithm(step, memory=("momentum",) if local.momentum else (), step_parts=step_parts)


def reject_momentum(local: LocalParameters) -> None:
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
    """Applies one step, in place and in one pass over memory.

    Args:
        parameters: x, one tensor per parameter.
        gradient: g, likewise; may be overwritten.
        momentum: m, likewise, strided like the parameters; may be empty if β = 0.
        local: momentum β, weight decay, and whether to look ahead.
        rate: learning rate η.
    """
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


# --------------------------------------------------------------------------------------------------
# Adam, and AdamW with decoupled weight decay.
#
#     m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  x ← x − η (m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε)
#
# Adam adds `weight_decay` · x to the gradient; AdamW first takes x ← x − η · weight_decay · x. Moments
# and the
# number t of steps are the device's memory. Options: `beta1`, `beta2`, `epsilon`.
#
# Kingma, Ba: Adam: a method for stochastic optimization, ICLR 2015. Loshchilov, Hutter: Decoupled weight
# decay
# regularization, ICLR 2019.


def adam(local: LocalParameters) -> LocalAlgorithm:
    """Adam with weight decay in the gradient."""
    return _build(local, decoupled=False)


def adamw(local: LocalParameters) -> LocalAlgorithm:
    """Adam with weight decay beside the gradient."""
    return _build(local, decoupled=True)


def _build(local: LocalParameters, *, decoupled: bool) -> LocalAlgorithm:
    betas = (
        local.read_option("beta1", 0.9, least=0, below=1),
        local.read_option("beta2", 0.999, least=0, below=1),
    )
    epsilon = local.read_option("epsilon", 1e-8, above=0)
    return LocalAlgorithm(
        partial(_step, betas=betas, epsilon=epsilon, decay=local.weight_decay, decoupled=decoupled),
        memory=("first_moment", "second_moment"),
        counters=("steps",),
        options=("beta1", "beta2", "epsilon"),
    )


def _step(
    x: Tensor,
    gradient: Tensor,
    memory: Memory,
    rate: float,
    *,
    betas: tuple[float, float],
    epsilon: float,
    decay: float,
    decoupled: bool,
) -> None:
    first, second, steps = memory["first_moment"], memory["second_moment"], memory["steps"]
    if decoupled:
        x.mul_(1 - rate * decay)
    elif decay:
        gradient.add_(x, alpha=decay)
    steps.add_(1)
    taken = int(steps.item())
    first.lerp_(gradient, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    scale = (1 - betas[1] ** taken) ** 0.5
    x.addcdiv_(first, second.sqrt().div_(scale).add_(epsilon), value=-rate / (1 - betas[0] ** taken))


# --------------------------------------------------------------------------------------------------
# FedProx: SGD on the loss plus μ/2 · ‖x − edge model‖², which keeps devices with unlike data close
# together.
#
# Option: `mu` ≥ 0; with 0 it is SGD.
#
# Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks, MLSys
# 2020. The
# paper's inexact local solutions are here the devices' shares ρ of the steps.


def fedprox(local: LocalParameters) -> LocalAlgorithm:
    """SGD with a proximal term."""
    mu = local.read_option("mu", 0.01, least=0)

    def pull(run: LocalRun, gradient: Tensor) -> None:
        gradient.add_(run.parameters - run.start, alpha=mu)

    return replace(sgd(local), change_gradient=pull, options=("mu",))


# --------------------------------------------------------------------------------------------------
# SCAFFOLD: SGD with control variates, which correct the drift of devices with unlike data.
#
# Device i adds c − c_i to its gradient: c_i is the mean gradient along its last edge round, c the mean
# over all
# devices, which its edge server keeps. Afterwards c_i ← c_i − c − Δ_i/(K_i η), with its update Δ_i as it
# was
# sent and its K_i steps (the paper's option II). The edge server knows Δ_i and K_i, so it changes c by
# the mean
# of the same differences, and nothing but the update is uploaded. c goes to devices with the model, and
# to
# neighbours in gossip, where it is charged. If an upload is lost on its way, c misses one device's
# difference.
#
# Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: stochastic controlled averaging for federated
# learning, ICML 2020. Without momentum only, as Δ_i/(K_i η) would not be a mean gradient.


def scaffold(local: LocalParameters) -> LocalAlgorithm:
    """SGD with control variates."""
    reject_momentum(local)

    def correct(run: LocalRun, gradient: Tensor) -> None:
        gradient.add_(run.edge_memory["variate"]).sub_(run.memory["variate"])

    def remember(run: LocalRun, update: Tensor) -> None:
        if run.steps and run.rate:
            run.memory["variate"].sub_(run.edge_memory["variate"])
            run.memory["variate"].sub_(update, alpha=1 / (run.steps * run.rate))

    def change(found: EdgeRound, memory: Mapping[str, Tensor]) -> Tensor:
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


# --------------------------------------------------------------------------------------------------
# FedDyn: SGD on a loss that is changed in every round so that devices' optima move towards the common
# one.
#
# Device i adds −g_i + α(x − edge model) to its gradient, and after the edge round takes g_i ← g_i − αΔ_i,
# with
# its update Δ_i as it was sent. The edge server remembers the sum z of its mean updates, which is the
# mean of
# −g_i/α, and adds it to every change: x ← x + mean Δ_i + z. Edge servers gossip z with their models.
# Option:
# `alpha` > 0.
#
# Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated learning based on dynamic
# regularization,
# ICLR 2021. The paper has one server; here each cluster has one, and they gossip z as they gossip models.


def feddyn(local: LocalParameters) -> LocalAlgorithm:
    """SGD with a dynamic regulariser."""
    alpha = local.read_option("alpha", 0.01, above=0)

    def regularise(run: LocalRun, gradient: Tensor) -> None:
        gradient.sub_(run.memory["drift"]).add_(run.parameters - run.start, alpha=alpha)

    def remember(run: LocalRun, update: Tensor) -> None:
        run.memory["drift"].sub_(update, alpha=alpha)

    def change(found: EdgeRound, memory: Mapping[str, Tensor]) -> Tensor:
        return found.update + memory["total_drift"].add_(found.update, alpha=found.share)

    return replace(
        sgd(local),
        lasting=("drift",),
        change_gradient=regularise,
        sent=remember,
        edge=EdgeRule(change, memory=("total_drift",)),
        options=("alpha",),
    )


# --------------------------------------------------------------------------------------------------
# FedNova: SGD whose updates count per step, so that devices that take more steps do not pull harder.
#
# The edge server adds T · Σ p_i Δ_i / τ_i instead of Σ p_i Δ_i: Δ_i is device i's update, τ_i its number
# of
# steps and T their weighted mean. Under HCEF, where devices take different shares ρ of the steps, the
# plain
# mean favours the data of fast devices.
#
# Wang, Liu, Liang, Joshi, Poor: Tackling the objective inconsistency problem in heterogeneous federated
# optimization, NeurIPS 2020. Without momentum only: with it, a step's share in the update is not 1/τ_i.


def fednova(local: LocalParameters) -> LocalAlgorithm:
    """SGD with normalised averaging."""
    reject_momentum(local)

    def change(found: EdgeRound, _memory: Mapping[str, Tensor]) -> Tensor:
        return found.update_per_step * found.mean_steps

    return replace(sgd(local), edge=EdgeRule(change, per_step=True))


# --------------------------------------------------------------------------------------------------
# Ditto: every device also trains a whole model of its own, which is pulled towards the edge model.
#
# The personal model v begins as the edge model. In every local step, v ← v − η (∇F(v) + λ (v − y)) on the
# batch
# of the step, with the edge model y at the beginning of the edge round. The edge model itself is trained
# as
# with SGD, one device at a time, to the same bits. With λ = 0, v is purely local training; a large λ
# keeps v
# near the edge model, and η λ must stay below 1.
#
# Options: `lambda` ≥ 0, 0.1 by default.
#
# Li, Hu, Beirami, Smith: Ditto: fair and robust federated learning through personalization, ICML 2021.
# Kept:
# the objective, and v trained beside the global model. Not kept: a number of personal steps of its own
# (here
# one per local step, on the same batch, so that ρ limits both). v is trained without momentum. Time and
# energy
# are charged for two gradients per step. Statistics of batch norm are the edge model's.


PERSONAL = "personal_model"


def ditto(local: LocalParameters) -> LocalAlgorithm:
    """SGD, and a personal model beside it."""
    pull = local.read_option("lambda", 0.1, least=0)
    if pull * local.learning_rate >= 1:
        raise InputError(
            f"local.options.lambda = {pull:g}: with local.learning_rate = {local.learning_rate:g} it pulls "
            "personal models past the edge model; their product must be below 1"
        )

    def begin(run: LocalRun) -> None:
        # Only a device's first order finds zeros: nobody trains a model of zeros.
        if not run.memory[PERSONAL].any():
            run.memory[PERSONAL].copy_(run.start)

    def step_aside(run: LocalRun, _: Tensor) -> None:
        own = run.memory[PERSONAL]
        change = run.gradient_at(own).add_(own - run.start, alpha=pull)
        own.sub_(change, alpha=run.rate)

    return replace(
        sgd(local),
        lasting=(PERSONAL,),
        begin=begin,
        change_gradient=step_aside,
        options=("lambda",),
        personal_model=PERSONAL,
        gradients=2,
    )


# --------------------------------------------------------------------------------------------------
# Shared momentum: SGD whose momentum starts every edge round at the mean of the cluster's.
#
# A device's own momentum carries the noise of its batches and the bias of its data from edge round to
# edge
# round, and pulls its model away from the others' in every step. Averaging momentum along with the models
# removes both. Nothing more has to be uploaded: −Δ/(Kη), the mean update Δ over the mean number of steps
# K and
# the learning rate, is the mean momentum along the edge round, as far as it is sent. The edge server
# keeps it,
# sends it to devices with the model, and mixes it with its neighbours' in gossip, where it is charged.
# What
# error feedback sends late counts as momentum of the present, so that the learning rate must not fall
# then.
#
# Yu, Jin, Yang: On the linear speedup analysis of communication efficient momentum SGD for distributed
# non-convex optimization, ICML 2019, average momentum, too, but upload it. Xu, Wang, Wang, Yao: FedCM,
# 2021,
# send devices the mean update as a direction that stays the same in all steps of a round.


def shared_momentum(local: LocalParameters) -> LocalAlgorithm:
    """SGD with the momentum of the cluster."""
    if not local.momentum:
        raise InputError("local.algorithm = 'shared_momentum': needs local.momentum > 0")

    def begin(run: LocalRun) -> None:
        run.memory["momentum"].copy_(run.edge_memory["mean_momentum"])

    def change(found: EdgeRound, memory: Mapping[str, Tensor]) -> Tensor:
        if found.rate and found.mean_steps:
            memory["mean_momentum"].copy_(found.update).div_(-found.rate * found.mean_steps)
        return found.update

    return replace(sgd(local), begin=begin, edge=EdgeRule(change, memory=("mean_momentum",)))


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
    }
)


def build_algorithm(local: LocalParameters, code: CodePolicy = BUILT_IN_ONLY) -> LocalAlgorithm:
    """Builds the algorithm that `[local]` names: built in, an entry point, or "module:function".

    Raises:
        InputError: there is no such algorithm, it cannot be called as one, or an option is unknown.
    """
    name = local.algorithm
    builder: AlgorithmBuilder = resolve("algorithm", name, ALGORITHMS, ("local",), code=code)
    algorithm = builder(local)
    what = f"algorithm {name!r}"
    check_result(what, algorithm, LocalAlgorithm)
    if name not in ALGORITHMS:
        _check_functions(what, algorithm)
    if algorithm.train is not None and local.estimator == "fresh":
        raise InputError(
            f"local.estimator = 'fresh': {what} has a loop of its own, whose gradients cannot be seen; "
            "use 'reuse', which takes σ² and G² from what the loop returns"
        )
    for option in local.options:
        if option not in algorithm.options:
            raise InputError(unknown_name(f"local.options of {what}", option, algorithm.options))
    return algorithm


def find_algorithm(training: TrainingParameters) -> LocalAlgorithm:
    """The algorithm that devices train with."""
    return training.algorithm or build_algorithm(training.local)


def _check_functions(what: str, algorithm: LocalAlgorithm) -> None:
    hooks = (
        ("step", algorithm.step, ("x", "gradient", "memory", "rate")),
        ("train", algorithm.train, ("run",)),
        ("begin", algorithm.begin, ("run",)),
        ("change_gradient", algorithm.change_gradient, ("run", "gradient")),
        ("end", algorithm.end, ("run",)),
        ("sent", algorithm.sent, ("run", "update")),
    )
    for name, hook, takes in hooks:
        if hook is not None:
            check_call(f"{what}: {name}", hook, takes)
