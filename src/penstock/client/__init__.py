"""The client: the control plane from Python, through a server or, without one, on a state directory."""

from penstock.client.plane import ControlPlane
from penstock.client.remote import Client

__all__ = ["Client", "ControlPlane"]
