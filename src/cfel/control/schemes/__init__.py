"""The schemes that come with cfel, one file each; no scheme imports another."""

from collections.abc import Mapping
from types import MappingProxyType

from cfel.control.plugin_checks import check_scheme
from cfel.control.scheme import Scheme, SchemeBuilder, SchemeParameters
from cfel.control.schemes.anycost import anycost
from cfel.control.schemes.cef import cef
from cfel.control.schemes.cef_c import cef_c
from cfel.control.schemes.cef_f import cef_f
from cfel.control.schemes.fedavg import fedavg
from cfel.control.schemes.fedluck import fedluck
from cfel.control.schemes.hcef import hcef
from cfel.control.schemes.hcef_plus import hcef_plus
from cfel.control.schemes.hier_fedavg import hier_fedavg
from cfel.control.schemes.matcha import matcha
from cfel.control.schemes.mll_sgd import mll_sgd
from cfel.control.schemes.nori import nori
from cfel.control.schemes.oort import oort
from cfel.control.schemes.p_fedavg import p_fedavg
from cfel.control.schemes.sd_feel import sd_feel
from cfel.control.variants import apply_variants
from cfel.plugins import BUILT_IN_ONLY, CodePolicy, resolve

SCHEMES: Mapping[str, SchemeBuilder] = MappingProxyType(
    {
        "hcef": hcef,
        "hcef_plus": hcef_plus,
        "cef": cef,
        "cef_f": cef_f,
        "cef_c": cef_c,
        "mll_sgd": mll_sgd,
        "fedavg": fedavg,
        "hier_fedavg": hier_fedavg,
        "p_fedavg": p_fedavg,
        "sd_feel": sd_feel,
        "matcha": matcha,
        "oort": oort,
        "anycost": anycost,
        "fedluck": fedluck,
        "nori": nori,
    }
)


def build_scheme(parameters: SchemeParameters, code: CodePolicy = BUILT_IN_ONLY) -> Scheme:
    """Builds the scheme that the parameters name: built in, an entry point, or "module:function"."""
    builder: SchemeBuilder = resolve("scheme", parameters.name, SCHEMES, ("parameters",), code=code)
    scheme = builder(parameters)
    # Built-in schemes are covered by tests, and a check of every plan takes time.
    if parameters.name not in SCHEMES:
        scheme = check_scheme(parameters.name, scheme)
    return apply_variants(scheme, parameters)
