//! Tensors of f64 on the host, by name: the currency of the law.

use crate::{Dtype, Error, Result, Shape};

/// A contiguous f64 tensor on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct Values {
    /// The sizes.
    pub shape: Shape,
    /// The elements, row-major.
    pub data: Vec<f64>,
}

impl Values {
    /// `data` as a tensor of `shape`.
    pub fn new(shape: impl Into<Shape>, data: Vec<f64>) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != data.len() {
            return Err(Error::shape(format!("{} elements cannot be a tensor of shape {shape}", data.len())));
        }
        Ok(Self { shape, data })
    }
    /// A tensor of zeros.
    pub fn zeros(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        Self { data: vec![0.0; shape.elements()], shape }
    }
    /// A tensor whose elements `draw` makes, in row-major order.
    pub fn from_fn(shape: impl Into<Shape>, draw: impl FnMut() -> f64) -> Self {
        let shape = shape.into();
        let mut draw = draw;
        Self { data: (0..shape.elements()).map(|_| draw()).collect(), shape }
    }
    /// The elements rounded to what `dtype` can store.
    #[must_use]
    pub fn rounded(mut self, dtype: Dtype) -> Self {
        for x in &mut self.data {
            *x = round(*x, dtype);
        }
        self
    }
}

/// `x` rounded to the nearest value (ties to even) that `dtype` can store.
fn round(x: f64, dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F64 => x,
        Dtype::F32 | Dtype::C64 => f64::from(x as f32),
        Dtype::Bf16 | Dtype::F16 => {
            if !x.is_finite() || x == 0.0 {
                return x;
            }
            // Significand bits, smallest normal exponent, largest finite value.
            let (bits, min_exp, max) =
                if dtype == Dtype::Bf16 { (8, -126, 3.389_531_389_251_535_5e38) } else { (11, -14, 65504.0) };
            let exponent = (x.abs().log2().floor() as i32).max(min_exp);
            let quantum = 2f64.powi(exponent - bits + 1);
            let r = (x / quantum).round_ties_even() * quantum;
            if r.abs() > max { f64::INFINITY.copysign(x) } else { r }
        }
        Dtype::I64 | Dtype::I32 | Dtype::U8 => x.round(),
        _ => x,
    }
}

/// Tensors by name, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tensors(Vec<(String, Values)>);

impl Tensors {
    /// No tensors.
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds a tensor, or replaces the one of that name.
    pub fn insert(&mut self, name: impl Into<String>, values: Values) {
        let name = name.into();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, v)) => *v = values,
            None => self.0.push((name, values)),
        }
    }
    /// The tensor of that name.
    pub fn find(&self, name: &str) -> Option<&Values> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
    /// The tensor of that name, or an error that lists those that are there.
    pub fn get(&self, name: &str) -> Result<&Values> {
        self.find(name).ok_or_else(|| {
            let names: Vec<_> = self.0.iter().map(|(n, _)| n.as_str()).collect();
            Error::shape(format!("no tensor `{name}` among {}", names.join(", ")))
        })
    }
    /// The tensor of that name, to change.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Values> {
        self.0.iter_mut().find(|(n, _)| n == name).map(|(_, v)| v)
    }
    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Values)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v))
    }
}

impl FromIterator<(String, Values)> for Tensors {
    fn from_iter<I: IntoIterator<Item = (String, Values)>>(items: I) -> Self {
        let mut t = Self::new();
        items.into_iter().for_each(|(n, v)| t.insert(n, v));
        t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_storage_type() {
        assert_eq!(round(1.0 + 2f64.powi(-9), Dtype::Bf16), 1.0);
        assert_eq!(round(1.0 + 3.0 * 2f64.powi(-9), Dtype::Bf16), 1.0 + 2f64.powi(-7) * 1.0);
        assert_eq!(round(65519.0, Dtype::F16), 65504.0);
        assert_eq!(round(65520.0, Dtype::F16), f64::INFINITY);
        assert_eq!(round(2f64.powi(-24), Dtype::F16), 2f64.powi(-24));
        assert_eq!(round(0.1, Dtype::F32), f64::from(0.1f32));
    }
}
