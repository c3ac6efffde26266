//! A result against the law.

use crate::op::{Metric, Values};

/// How far a result is from the law.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Comparison {
    /// In the metric that was asked for; NaN where the result or the law is not finite, unless both are NaN and `nan` says that the law may
    /// be, in a part.
    pub error: f64,
    /// A sentence on the worst element.
    pub worst: String,
}

/// `got` against `law`, which must have one shape; `nan` as [`Problem::has_no_result`](crate::op::Problem::has_no_result) has it.
pub(crate) fn compare(got: &Values, law: &Values, metric: Metric, nan: bool) -> Comparison {
    if got.shape != law.shape {
        let worst = format!("the shape is {}, the law's is {}", got.shape, law.shape);
        return Comparison { error: f64::NAN, worst };
    }
    let (mut square, mut scale, mut largest) = (0.0f64, 0.0f64, 0.0f64);
    let (mut at, mut not_finite) = (0, 0usize);
    // A law of NaN says that there is no result (who did not write it is found elsewhere); one of nothing else says nothing.
    let says = nan && law.data.iter().any(|l| !l.is_nan());
    for (i, (g, l)) in got.data.iter().zip(&law.data).enumerate() {
        if says && g.is_nan() && l.is_nan() {
            continue;
        }
        let d = (g - l).abs();
        if !d.is_finite() {
            not_finite += 1;
            if not_finite == 1 {
                at = i;
            }
            continue;
        }
        square += d * d;
        scale += l * l;
        if d > largest && not_finite == 0 {
            (largest, at) = (d, i);
        }
    }
    let error = match metric {
        _ if not_finite > 0 => f64::NAN,
        Metric::MaxAbsolute => largest,
        Metric::Relative if scale == 0.0 => square.sqrt(),
        Metric::Relative => (square / scale).sqrt(),
    };
    let worst = match (got.data.get(at), not_finite) {
        (None, _) => "no elements".to_owned(),
        (Some(g), 0) => format!("worst at {}: {g:e}, the law says {:e}", index(&got.shape, at), law.data[at]),
        (Some(g), n) => format!(
            "{n} of {} elements are not finite; the first at {}: {g}, the law says {:e}",
            got.data.len(),
            index(&got.shape, at),
            law.data[at]
        ),
    };
    Comparison { error, worst }
}

/// Position `flat` as an index: `[1, 0, 7]`.
pub(crate) fn index(shape: &[usize], flat: usize) -> String {
    let mut rest = flat;
    let mut parts: Vec<String> = shape
        .iter()
        .rev()
        .map(|&d| {
            let i = rest % d.max(1);
            rest /= d.max(1);
            i.to_string()
        })
        .collect();
    parts.reverse();
    format!("[{}]", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(data: &[f64]) -> Values {
        Values::new([data.len()], data.to_vec()).unwrap()
    }

    #[test]
    fn metrics_measure() {
        let c = compare(&v(&[3.0, 4.0, 1.0]), &v(&[3.0, 4.0, 0.0]), Metric::Relative, false);
        assert_eq!(c.error, 0.2);
        assert!(c.worst.contains("[2]: 1e0, the law says 0e0"), "{}", c.worst);
        assert_eq!(compare(&v(&[3.0, 1.0]), &v(&[3.0, 1.5]), Metric::MaxAbsolute, false).error, 0.5);
        assert_eq!(compare(&v(&[3.0, 4.0]), &v(&[0.0, 0.0]), Metric::Relative, false).error, 5.0);
        assert_eq!(compare(&v(&[]), &v(&[]), Metric::Relative, false).error, 0.0);
    }

    #[test]
    fn what_is_not_finite_is_no_number() {
        for (g, l) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::INFINITY, f64::INFINITY)] {
            let c = compare(&v(&[0.0, g]), &v(&[0.0, l]), Metric::MaxAbsolute, false);
            assert!(c.error.is_nan() && c.worst.starts_with("1 of 2 elements"), "{c:?}");
        }
        assert!(compare(&v(&[0.0]), &Values::zeros([1, 1]), Metric::Relative, false).error.is_nan());
        let part = |nan| compare(&v(&[3.0, f64::NAN]), &v(&[2.0, f64::NAN]), Metric::Relative, nan).error;
        assert!(part(true) == 0.5 && part(false).is_nan());
        assert!(compare(&v(&[f64::NAN]), &v(&[f64::NAN]), Metric::Relative, true).error.is_nan());
        assert_eq!(index(&[2, 3, 4], 23), "[1, 2, 3]");
    }
}
