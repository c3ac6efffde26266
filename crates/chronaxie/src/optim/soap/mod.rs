//! SOAP's step over the flat vector of all parameters (README.md of this folder).

pub(super) mod basis;
mod cpu;
mod cuda;
mod op;
mod probe;
pub mod reference;
pub mod spec;
#[cfg(test)]
mod tests;

pub use op::SoapOp;
pub use spec::Soap;
