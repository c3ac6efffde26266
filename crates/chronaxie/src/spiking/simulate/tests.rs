//! Tests of the engines.
