"""Why a house could not be put up."""

from __future__ import annotations

from standfast_chassis.errors import StandfastError


class HouseError(StandfastError):
    """Something that a house needs is missing or taken: nothing was started."""

    reason = "HOUSE_REFUSED"


class HouseBrokeError(StandfastError):
    """A process did not come up, or ended by itself: the others were stopped."""

    reason = "HOUSE_BROKE"
