//! Cases of the family; see the parent module.
