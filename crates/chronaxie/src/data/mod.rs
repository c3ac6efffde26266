//! Data readers.
