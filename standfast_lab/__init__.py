"""The lab: a provider and an oracle that let the whole system be tried with no model and no key."""
