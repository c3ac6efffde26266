//! A configuration asked for by name.

use super::tune::Role;
use crate::{Error, Result};

/// What a user may ask for by name: `rows`, with steps of a chunk `rowst3`, `levels` alike, or letters and numbers as the configuration prints
/// them, `c4r2s20g2`, also after `grid`, where `s` is the most steps that a warp holds and `t3` steps of a chunk.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wish {
    pub(super) rows_only: bool,
    pub(super) grid: bool,
    /// Level by level (levels.cuh).
    pub(super) levels: bool,
    /// That in one block forward (levels_row.cu).
    pub(super) levels_row: bool,
    pub(super) steps: Option<usize>,
    pub(super) blocks: Option<usize>,
    pub(super) rows: Option<usize>,
    pub(super) slots: Option<usize>,
    pub(super) groups: Option<usize>,
    pub(super) of: Option<Role>,
}

impl Wish {
    /// What is left of it for one of the kernels.
    pub(super) fn of(&self, role: Role) -> Self {
        if self.of.unwrap_or(Role::Recurrence) == role {
            *self
        } else {
            let Self { rows_only, grid, levels, levels_row, steps, of, .. } = *self;
            Self { rows_only, grid, levels, levels_row, steps, of, ..Self::default() }
        }
    }
    /// Whether anything is asked for.
    pub(super) fn any(&self) -> bool {
        let shape = [self.blocks, self.rows, self.slots, self.groups, self.steps];
        self.rows_only || self.grid || self.levels || self.of.is_some() || shape.iter().any(Option::is_some)
    }
    /// Whether one of the kernels is to be the one whose synapses are divided over the device: all of them, or those of the
    /// backward pass where one of these is asked for.
    pub(super) fn grid(&self, role: Role) -> bool {
        self.grid && (self.of.is_none() || role != Role::Recurrence)
    }
    pub(super) fn parse(name: Option<&str>) -> Result<Self> {
        let mut wish = Self::default();
        let Some(name) = name else { return Ok(wish) };
        let bad = || {
            Error::config(format!(
                "ltc: variant `{name}` is neither `rows` nor of the form c4r2s20g2, after b for the adjoint, after u for the \
                 rebuilt unfolds, nor `grid` with or without letters c, r, g behind it, nor `levels` or `levelsrow`; `rowst3`, `levelst3` and `levelsrowt3` go in chunks of 3 steps"
            ))
        };
        let in_chunks =
            ["rows", "levelsrow", "levels"].into_iter().find_map(|word| Some((word, name.strip_prefix(word)?)));
        if let Some((word, steps)) = in_chunks {
            wish.rows_only = word == "rows";
            (wish.levels, wish.levels_row) = (!wish.rows_only, word == "levelsrow");
            if !steps.is_empty() {
                let number = steps.strip_prefix('t').and_then(|n| n.parse().ok()).filter(|&n| n > 0);
                wish.steps = Some(number.ok_or_else(bad)?);
            }
            return Ok(wish);
        }
        let mut rest = name;
        for (prefix, role) in [('b', Role::Adjoint), ('u', Role::Rebuild)] {
            if let Some(after) = name.strip_prefix(prefix) {
                (wish.of, rest) = (Some(role), after);
            }
        }
        if let Some(after) = rest.strip_prefix("grid") {
            (wish.grid, rest) = (true, after);
        } else if rest.is_empty() {
            return Err(bad());
        }
        while let Some(letter) = rest.chars().next() {
            let field = match letter {
                'c' => &mut wish.blocks,
                'r' => &mut wish.rows,
                's' => &mut wish.slots,
                'g' => &mut wish.groups,
                't' if wish.grid => &mut wish.steps,
                _ => return Err(bad()),
            };
            // The letter is one byte, as it is one of these.
            let digits = rest[1..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| n + 1);
            let number = rest[1..digits].parse().ok().filter(|&n| n > 0);
            *field = Some(number.ok_or_else(bad)?);
            rest = &rest[digits..];
        }
        Ok(wish)
    }
}
