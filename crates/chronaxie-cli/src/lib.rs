//! The command line of chronaxie.
