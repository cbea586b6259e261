"""Typed configs of the optimizers: `muon`, `adamw`, and `composite`, which gives each role its own. Free of torch."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from littlelm.config.base import ComponentConfig, ComponentOf
from littlelm.registry import declare_kind, register_lazy

Role = Literal["matrix", "embedding", "head", "value_embedding", "scalar", "norm"]
"""What a parameter is for; the module that owns it says which (`Transformer.parameter_roles`)."""

ROLES: tuple[str, ...] = get_args(Role)

POLAR_EXPRESS_STEPS = 5
"""Iterations for which the Polar Express coefficients are tabulated."""

declare_kind(
    "optimizer",
    "built with (config, named_parameters, roles, *, seed, stochastic_rounding, compute_dtype): a torch.optim."
    "Optimizer whose groups carry role, names and initial_<h>, with state_tensors() and load_state_tensors(); subclass "
    "littlelm.optim.base.NamedOptimizer",
)


@register_lazy("optimizer", "adamw", "littlelm.optim.adamw:AdamW")
class AdamWConfig(ComponentConfig):
    """Adam with decoupled weight decay; moments in fp32 (8 bytes a parameter) whatever the weights' dtype."""

    lr: float = Field(3e-4, ge=0, description="peak learning rate, multiplied by the scheduler")
    betas: list[float] = Field(
        [0.9, 0.95],
        min_length=2,
        max_length=2,
        description="decay of the first and of the second moment, each in [0, 1)",
    )
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.0, ge=0, description="share of a weight taken away a step, times the learning rate")
    no_decay_roles: list[Role] = Field(
        ["norm", "scalar"], description="roles whose weights are never decayed, whatever weight_decay says"
    )

    @model_validator(mode="after")
    def _betas_are_decays(self) -> AdamWConfig:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas must each be at least 0 and below 1, not {self.betas}; usual: [0.9, 0.95]")
        return self


@register_lazy("optimizer", "muon", "littlelm.optim.muon:Muon")
class MuonConfig(ComponentConfig):
    """Nesterov momentum whose step is orthogonalised matrix by matrix; for 2-D weights, state 4 bytes a parameter."""

    lr: float = Field(0.02, ge=0, description="peak learning rate, multiplied by the scheduler")
    momentum: float = Field(0.95, ge=0, lt=1, description="decay of the gradient average, multiplied by its scheduler")
    nesterov: bool = Field(True, description="look ahead: orthogonalise the average of gradient and momentum")
    weight_decay: float = Field(0.0, ge=0, description="share of a weight taken away a step, times the learning rate")
    coefficients: Literal["classic", "polar_express"] = Field(
        "polar_express",
        description="polynomial of the orthogonalisation; 5 steps of classic, one quintic, bring singular values from "
        "1/300 up into [0.68, 1.2]; polar_express, the best one for each step, from 1/1000 up into [0.85, 1.14]",
    )
    ns_steps: int = Field(5, ge=1, le=20, description="iterations of the orthogonalisation")
    ns_dtype: Literal["auto", "bf16", "fp32"] = Field(
        "auto",
        description="dtype of the orthogonalisation's products; auto: the run's compute dtype. In bf16 a gradient's "
        "last bit, which depends on the number of processes, can change a step by a thousandth",
    )
    scale: Literal["spectral", "match_rms_adamw"] = Field(
        "spectral",
        description="size of a step for a (rows, cols) matrix. spectral: max(1, rows/cols)^0.5; match_rms_adamw: "
        "0.2 max(rows, cols)^0.5, so that AdamW's lr and weight_decay carry over",
    )
    compile: bool = Field(
        False,
        description="torch.compile the step, one graph a matrix shape, falling back to eager and saying so; spares a "
        "GPU many small kernels, and a CPU 4 % of the step for some 5 s of compilation a shape",
    )

    @model_validator(mode="after")
    def _coefficients_exist(self) -> MuonConfig:
        if self.coefficients == "polar_express" and self.ns_steps > POLAR_EXPRESS_STEPS:
            raise ValueError(
                f"ns_steps {self.ns_steps}: coefficients polar_express are made for {POLAR_EXPRESS_STEPS} iterations; "
                f"set ns_steps: {POLAR_EXPRESS_STEPS} or coefficients: classic"
            )
        return self


@register_lazy("optimizer", "composite", "littlelm.optim.composite:Composite")
class CompositeConfig(ComponentConfig):
    """One optimizer made of several, each for the parameters of its roles."""

    matrix: Annotated[ComponentConfig | None, ComponentOf("optimizer")] = Field(
        None, description="for the matrices of attention and MLP"
    )
    embedding: Annotated[ComponentConfig | None, ComponentOf("optimizer")] = Field(
        None, description="for the token embedding"
    )
    head: Annotated[ComponentConfig | None, ComponentOf("optimizer")] = Field(
        None, description="for the output head, when it is not tied to the embedding"
    )
    value_embedding: Annotated[ComponentConfig | None, ComponentOf("optimizer")] = Field(
        None, description="for the value embeddings"
    )
    scalar: Annotated[ComponentConfig | None, ComponentOf("optimizer")] = Field(
        None, description="for learnable scalars: residual lambdas, gates"
    )
    norm: Annotated[ComponentConfig | None, ComponentOf("optimizer")] = Field(
        None, description="for the weights of the norms"
    )
    default: Annotated[ComponentConfig | None, ComponentOf("optimizer")] = Field(
        None, description="for every role not named above; null: a role without optimizer is an error"
    )

    def for_role(self, role: str) -> ComponentConfig | None:
        """The config of the optimizer of `role`, or of the default; None when there is neither."""
        return getattr(self, role, None) or self.default

    @model_validator(mode="after")
    def _is_flat_and_not_empty(self) -> CompositeConfig:
        children = {key: getattr(self, key) for key in (*ROLES, "default")}
        if not any(children.values()):
            raise ValueError(
                f"a composite optimizer needs an optimizer for at least one of: {', '.join(children)}; "
                "for example `default: {adamw: {lr: 3e-4}}`"
            )
        nested = [key for key, child in children.items() if isinstance(child, CompositeConfig)]
        if nested:
            raise ValueError(f"{', '.join(nested)}: a composite may not contain another; name adamw, muon or your own")
        return self
