"""The relay: the one way from a sandbox to a model. See `relay` for its use."""

from sandbox_manager.host.relay.activation import RelayObservation
from sandbox_manager.host.relay.admission import Incident, IncidentKind
from sandbox_manager.host.relay.answer import text_sha256
from sandbox_manager.host.relay.port import RelayLimits
from sandbox_manager.host.relay.relay import Relay
from sandbox_manager.host.relay.upstream import KeyStyle, ModelProtocol, ProviderKey, Upstream, Upstreams

__all__ = [
    "Incident",
    "IncidentKind",
    "KeyStyle",
    "ModelProtocol",
    "ProviderKey",
    "Relay",
    "RelayLimits",
    "RelayObservation",
    "Upstream",
    "Upstreams",
    "text_sha256",
]
