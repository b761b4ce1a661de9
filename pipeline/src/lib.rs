//! The stage contract: keys, parts, manifests, store, lineage.
