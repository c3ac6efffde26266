//! The spelling of a case: `B24_T8_D128_H64,density=0.5,unfolds=6`.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Sizes by axis letter, and options by name. Some families also have words (`full_poisson`, `lm350m`), and steps that are no whole
/// numbers (`dt0.1`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Case {
    sizes: Vec<(String, usize)>,
    words: Vec<String>,
    decimals: Vec<(String, String)>,
    options: Vec<(String, String)>,
}

impl Case {
    /// Cases of an entry's own lists, which the registry's tests read.
    #[cfg(any(feature = "layers", feature = "optim", test))]
    pub(crate) fn list(names: &[&str]) -> Vec<Self> {
        names.iter().map(|n| n.parse().expect("the cases of an entry are well spelt")).collect()
    }
    /// The size of an axis.
    pub fn size(&self, axis: &str) -> Result<usize> {
        let found = self.sizes.iter().find(|(a, _)| a == axis).map(|&(_, n)| n);
        found.ok_or_else(|| Error::config(format!("case `{self}` has no size {axis}")))
    }
    /// The words of the case, joined by `_`.
    pub fn words(&self) -> String {
        self.words.join("_")
    }
    /// The size of an axis that need be no whole number.
    pub fn decimal(&self, axis: &str) -> Option<f64> {
        let decimal = self.decimals.iter().find(|(a, _)| a == axis).and_then(|(_, n)| n.parse().ok());
        decimal.or_else(|| self.size(axis).ok().map(|n| n as f64))
    }
    /// An option's value as text.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
    /// An option's value, or `default`.
    pub fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T> {
        match self.option(name) {
            None => Ok(default),
            Some(v) => v
                .parse()
                .map_err(|_| Error::config(format!("case `{self}`: {name}={v} is not a valid value for {name}"))),
        }
    }
    /// The same case with an option set.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.options.retain(|(n, _)| n != name);
        self.options.push((name.to_owned(), value.to_string()));
        self
    }
    /// The same case with another size of an axis that it has.
    #[must_use]
    pub fn with_size(mut self, axis: &str, size: usize) -> Self {
        self.sizes.iter_mut().filter(|(a, _)| a == axis).for_each(|(_, n)| *n = size);
        self
    }
    /// The case without an option, and the option's value.
    pub fn without(&self, name: &str) -> (Self, Option<String>) {
        let mut rest = self.clone();
        let value = rest.options.iter().position(|(n, _)| n == name).map(|i| rest.options.remove(i).1);
        (rest, value)
    }
    /// Refuses axes and options outside these lists, words, and sizes that are no whole numbers.
    pub fn allow(&self, axes: &[&str], options: &[&str]) -> Result<()> {
        let decimals = self.decimals.iter().map(|(a, n)| format!("{a}{n}"));
        if let Some(part) = self.words.iter().cloned().chain(decimals).next() {
            return Err(Error::config(format!("case `{self}`: `{part}` is not {AXIS}")));
        }
        self.allow_sizes(axes, options)
    }
    /// Likewise, but for words and sizes that are no whole numbers.
    pub(crate) fn allow_sizes(&self, axes: &[&str], options: &[&str]) -> Result<()> {
        let list = |l: &[&str]| if l.is_empty() { "none".to_owned() } else { l.join(", ") };
        let named = self.sizes.iter().map(|(a, _)| a).chain(self.decimals.iter().map(|(a, _)| a));
        if let Some(a) = named.into_iter().find(|a| !axes.contains(&a.as_str())) {
            return Err(Error::config(format!("case `{self}`: axis {a} is not one of {}", list(axes))));
        }
        if let Some((o, _)) = self.options.iter().find(|(o, _)| !options.contains(&o.as_str())) {
            return Err(Error::config(format!("case `{self}`: option {o} is not one of {}", list(options))));
        }
        Ok(())
    }
    /// The sizes alone, as records name the case.
    pub fn sizes_name(&self) -> String {
        let mut name = self.words();
        for (a, n) in &self.sizes {
            let apart = if name.is_empty() || a == "x" { "" } else { "_" };
            name += &format!("{apart}{a}{n}");
        }
        for (a, n) in &self.decimals {
            let apart = if name.is_empty() { "" } else { "_" };
            name += &format!("{apart}{a}{n}");
        }
        name
    }
}

/// What a part of a case is.
const AXIS: &str = "an axis letter and a size, such as B24";

impl FromStr for Case {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let bad = |part: &str, want: &str| Error::config(format!("case `{s}`: `{part}` is not {want}"));
        let mut case = Self::default();
        for (i, part) in s.split(',').enumerate() {
            if i > 0 || part.contains('=') {
                let (name, value) = part.split_once('=').ok_or_else(|| bad(part, "an option such as unfolds=6"))?;
                if case.option(name).is_some() {
                    return Err(bad(part, "allowed twice"));
                }
                case.options.push((name.trim().to_owned(), value.trim().to_owned()));
                continue;
            }
            for size in part.split('_').filter(|p| !p.is_empty()) {
                // A number of matrices of an order, or of neurons with so many synapses: 64x128.
                if let Some((count, order)) = size.split_once('x')
                    && let (Ok(count), Ok(order)) = (count.parse(), order.parse())
                {
                    if case.sizes.iter().any(|(a, _)| a.is_empty() || a == "x") {
                        return Err(bad(size, "allowed twice"));
                    }
                    case.sizes.extend([(String::new(), count), ("x".to_owned(), order)]);
                    continue;
                }
                let letter = |c: char| c.is_ascii_lowercase();
                let plain = size.chars().all(|c| letter(c) || c.is_ascii_digit());
                if size.len() > 1 && plain && size.starts_with(letter) && size.ends_with(letter) {
                    case.words.push(size.to_owned());
                    continue;
                }
                let digits = size.find(|c: char| c.is_ascii_digit()).unwrap_or(0);
                let (axis, number) = size.split_at(digits);
                let known = |a: &str| a == axis;
                if case.sizes.iter().any(|(a, _)| known(a)) || case.decimals.iter().any(|(a, _)| known(a)) {
                    return Err(bad(size, "allowed twice"));
                }
                if let (false, Ok(number)) = (axis.is_empty(), number.parse()) {
                    case.sizes.push((axis.to_owned(), number));
                    continue;
                }
                let plain = number.bytes().all(|c| c.is_ascii_digit() || c == b'.') && number.contains('.');
                if axis.is_empty() || !plain || number.parse::<f64>().is_err() {
                    return Err(bad(size, AXIS));
                }
                case.decimals.push((axis.to_owned(), number.to_owned()));
            }
        }
        Ok(case)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sizes_name())?;
        for (i, (n, v)) in self.options.iter().enumerate() {
            let first = i == 0 && self.sizes.is_empty() && self.words.is_empty() && self.decimals.is_empty();
            let comma = if first { "" } else { "," };
            write!(f, "{comma}{n}={v}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_round_trip() {
        for s in ["B24_T8_D128_H64", "B1_NH8_K256_V512,state=bf16,seed=2", "density=0.5", "64x128", "3x4_T5,p=2"]
            .into_iter()
            .chain([
                "full_poisson_stdp",
                "lm350m,every=1",
                "full_dc,scale=0.1",
                "1000000x1000_dt0.1",
                "100x10_dt1",
                "100x10_S5",
            ])
        {
            assert_eq!(s.parse::<Case>().unwrap().to_string(), s);
        }
        let c: Case = "B24_T8,unfolds=2".parse().unwrap();
        assert_eq!((c.size("T").unwrap(), c.get("unfolds", 6usize).unwrap()), (8, 2));
        assert_eq!(c.clone().with_size("T", 3).with_size("Q", 1).to_string(), "B24_T3,unfolds=2");
        assert_eq!(c.get("dt", 0.5f64).unwrap(), 0.5);
    }

    #[test]
    fn mistakes_are_named() {
        for (s, want) in [
            ("B", "`B` is not an axis letter"),
            ("24", "`24` is not an axis letter"),
            ("B2_B3", "allowed twice"),
            ("B2,x", "`x` is not an option"),
            ("B2_dt0.1.2", "`dt0.1.2` is not an axis letter"),
            ("B2_dt0.1_dt1", "allowed twice"),
            ("B2_Dt", "`Dt` is not an axis letter"),
            ("0.5", "`0.5` is not an axis letter"),
        ] {
            let e = s.parse::<Case>().unwrap_err().to_string();
            assert!(e.contains(want), "{s}: {e}");
        }
        let c: Case = "B2_Q3,unfold=1".parse().unwrap();
        assert!(c.allow(&["B"], &[]).unwrap_err().to_string().contains("axis Q is not one of B"));
        assert!(c.allow(&["B", "Q"], &["unfolds"]).unwrap_err().to_string().contains("option unfold "));
        for (s, part) in [("B2_full", "full"), ("B2_dt0.1", "dt0.1")] {
            let e = s.parse::<Case>().unwrap().allow(&["B", "dt"], &[]).unwrap_err().to_string();
            assert!(e.contains(&format!("`{part}` is not an axis letter")), "{e}");
        }
        let n: Case = "100x10_dt0.1".parse().unwrap();
        assert_eq!((n.decimal("dt"), n.decimal("x"), n.decimal("T")), (Some(0.1), Some(10.0), None));
        assert!(c.size("T").unwrap_err().to_string().contains("no size T"));
        assert!(c.get::<f64>("unfold", 0.0).is_ok());
        assert!("B2,dt=x".parse::<Case>().unwrap().get::<f64>("dt", 0.0).unwrap_err().to_string().contains("dt=x"));
    }
}
