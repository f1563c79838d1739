"""Internal: state at rest. `places` says where it lives, `layout` what it looks like, `inspection` what is in it."""
