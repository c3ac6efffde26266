//! Elements as they lie in memory, from and to f64.

use crate::{Dtype, Error, Result};
use half::{bf16, f16};

/// The bytes of `values` stored as `dtype`, rounded to nearest with ties to even. Two values make one complex element.
///
/// # Errors
/// A value that an integer type cannot hold, with its position.
pub(super) fn encode(values: &[f64], dtype: Dtype, out: &mut [u8]) -> Result<()> {
    fn put<const N: usize>(values: &[f64], out: &mut [u8], f: impl Fn(f64) -> [u8; N]) {
        for (x, o) in values.iter().zip(out.chunks_exact_mut(N)) {
            o.copy_from_slice(&f(*x));
        }
    }
    let integer = |low: f64, high: f64| match values.iter().position(|x| !(*x >= low && *x <= high)) {
        None => Ok(()),
        Some(i) => Err(Error::value(format!("element {i} is {}, which {dtype} cannot hold", values[i]))),
    };
    match dtype {
        Dtype::F64 => put(values, out, f64::to_le_bytes),
        Dtype::F32 | Dtype::C64 => put(values, out, |x| (x as f32).to_le_bytes()),
        Dtype::Bf16 => put(values, out, |x| bf16::from_f64(x).to_le_bytes()),
        Dtype::F16 => put(values, out, |x| f16::from_f64(x).to_le_bytes()),
        Dtype::I64 => {
            integer(i64::MIN as f64, i64::MAX as f64)?;
            put(values, out, |x| (x.round() as i64).to_le_bytes());
        }
        Dtype::I32 => {
            integer(i32::MIN.into(), i32::MAX.into())?;
            put(values, out, |x| (x.round() as i32).to_le_bytes());
        }
        Dtype::U8 => {
            integer(0.0, 255.0)?;
            put(values, out, |x| [x.round() as u8]);
        }
        other => return Err(Error::dtype(format!("{other} cannot be made from f64"))),
    }
    Ok(())
}

/// The elements of `bytes` as f64, exactly but for i64 beyond 2^53. A complex element gives two values.
pub(super) fn decode(bytes: &[u8], dtype: Dtype) -> Result<Vec<f64>> {
    fn take<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).map(|c| f(c.try_into().expect("chunks of N bytes"))).collect()
    }
    Ok(match dtype {
        Dtype::F64 => take(bytes, f64::from_le_bytes),
        Dtype::F32 | Dtype::C64 => take(bytes, |b| f32::from_le_bytes(b).into()),
        Dtype::Bf16 => take(bytes, |b| bf16::from_le_bytes(b).into()),
        Dtype::F16 => take(bytes, |b| f16::from_le_bytes(b).into()),
        Dtype::I64 => take(bytes, |b| i64::from_le_bytes(b) as f64),
        Dtype::I32 => take(bytes, |b| i32::from_le_bytes(b).into()),
        Dtype::U8 => take(bytes, |[b]| b.into()),
        other => return Err(Error::dtype(format!("{other} cannot be read as f64"))),
    })
}

/// How many f64 stand for one element.
pub(super) const fn values_per_element(dtype: Dtype) -> usize {
    if matches!(dtype, Dtype::C64) { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_type_can_store_comes_back() {
        let cases: [(Dtype, &[f64]); 7] = [
            (Dtype::F64, &[0.1, -1e300, f64::INFINITY]),
            (Dtype::F32, &[0.5, -3.25, f64::NEG_INFINITY]),
            (Dtype::Bf16, &[1.0, -0.007_812_5, 3.389_531_389_251_535_5e38]),
            (Dtype::F16, &[65504.0, 5.960_464_477_539_063e-8, -2.0]),
            (Dtype::I64, &[-9e15, 3.0, 0.0]),
            (Dtype::I32, &[-2147483648.0, 7.0]),
            (Dtype::U8, &[0.0, 255.0]),
        ];
        for (dtype, x) in cases {
            let mut bytes = vec![0; x.len() * dtype.size()];
            encode(x, dtype, &mut bytes).unwrap();
            assert_eq!(decode(&bytes, dtype).unwrap(), x, "{dtype}");
        }
    }

    #[test]
    fn integers_out_of_range_are_named() {
        let e = encode(&[1.0, 256.0], Dtype::U8, &mut [0; 2]).unwrap_err();
        assert_eq!(e.to_string(), "element 1 is 256, which u8 cannot hold");
        assert!(encode(&[f64::NAN], Dtype::I32, &mut [0; 4]).is_err());
    }

    #[test]
    fn storage_agrees_with_the_laws_rounding() {
        let mut rng = crate::rng::Rng::new(3, 0);
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let x: Vec<f64> = (0..20_000).map(|_| rng.normal() * 2f64.powi(rng.below(40) as i32 - 30)).collect();
            let rounded = crate::op::Values::new([x.len()], x).unwrap().rounded(dtype).data;
            let mut bytes = vec![0; rounded.len() * 2];
            encode(&rounded, dtype, &mut bytes).unwrap();
            assert_eq!(decode(&bytes, dtype).unwrap(), rounded, "{dtype}");
        }
    }
}
