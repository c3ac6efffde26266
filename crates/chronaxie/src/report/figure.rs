//! Pictures of points, bars and lines, drawn as SVG and PNG.

use super::canvas::{self, FAINT, FONT, GRID, INK, Picture, failed};
use crate::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Told apart by every common kind of colour vision (Okabe and Ito, 2008), each in two shades.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x5b, 0x5b, 0x5b),
    RGBColor(0xb8, 0xa9, 0x00),
];

/// What is drawn; values that are not finite are left out.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Mark {
    /// Dots.
    Points {
        /// What the legend calls them.
        name: String,
        /// (x, y).
        points: Vec<(f64, f64)>,
        /// Which colour.
        colour: usize,
    },
    /// A line through points.
    Line {
        /// What the legend calls it.
        name: String,
        /// (x, y), in ascending x.
        points: Vec<(f64, f64)>,
        /// Which colour.
        colour: usize,
    },
    /// Bars from 0.
    Bars {
        /// What the legend calls them.
        name: String,
        /// (middle, height).
        points: Vec<(f64, f64)>,
        /// How wide each is.
        width: f64,
        /// Which colour.
        colour: usize,
    },
}

/// Axes with marks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Axes {
    /// What is drawn to the right.
    pub x_label: String,
    /// What is drawn upwards.
    pub y_label: String,
    /// The marks.
    pub marks: Vec<Mark>,
    /// Names of x = 0, 1, ..., where x are things.
    pub names: Vec<String>,
}

/// Axes side by side.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The heading.
    pub title: String,
    /// From left to right.
    pub panels: Vec<Axes>,
}

impl Mark {
    fn parts(&self) -> (&str, &[(f64, f64)], RGBColor) {
        let (Self::Points { name, points, colour }
        | Self::Line { name, points, colour }
        | Self::Bars { name, points, colour, .. }) = self;
        (name, points, COLOURS[colour % COLOURS.len()])
    }
}

impl Figure {
    /// The picture as SVG.
    ///
    /// # Errors
    /// Where the drawing library fails.
    pub fn svg(&self) -> Result<String> {
        canvas::svg(self)
    }
    /// The picture as PNG, in RGB.
    ///
    /// # Errors
    /// As [`svg`](Self::svg).
    pub fn png(&self) -> Result<Vec<u8>> {
        canvas::png(self)
    }
}

impl Picture for Figure {
    const SIZE: (u32, u32) = (1100, 460);

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, scale: u32) -> Result<()> {
        let s = |n: u32| n * scale;
        area.fill(&WHITE).map_err(failed)?;
        let heading = (FONT, s(17)).into_font().color(&INK);
        area.draw_text(&self.title, &heading, (s(24) as i32, s(16) as i32)).map_err(failed)?;
        let body = area.margin(s(44), s(8), s(8), s(16));
        for (axes, area) in self.panels.iter().zip(body.split_evenly((1, self.panels.len().max(1)))) {
            axes.draw(&area, scale)?;
        }
        Ok(())
    }
}

fn range(values: impl Iterator<Item = f64>, from_zero: bool) -> std::ops::Range<f64> {
    let finite = values.filter(|x| x.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    if low > high {
        return 0.0..1.0;
    }
    let low = if from_zero { low.min(0.0) } else { low };
    let air = if high > low { 0.04 * (high - low) } else { 0.5 * high.abs().max(1e-6) };
    (if from_zero && low >= 0.0 { 0.0 } else { low - air })..high + air
}

impl Axes {
    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, scale: u32) -> Result<()> {
        let s = |n: u32| n * scale;
        let text = |size: u32, colour: &RGBColor| (FONT, s(size)).into_font().color(colour);
        let all = || self.marks.iter().flat_map(|m| m.parts().1.iter().copied());
        let x =
            if self.names.is_empty() { range(all().map(|p| p.0), false) } else { -0.6..self.names.len() as f64 - 0.4 };
        let dots = self.marks.iter().any(|m| matches!(m, Mark::Points { .. }));
        let y = range(all().map(|p| p.1), !dots);
        let mut chart = ChartBuilder::on(area)
            .margin(s(8))
            .x_label_area_size(s(44))
            .y_label_area_size(s(68))
            .build_cartesian_2d(x, y.clone())
            .map_err(failed)?;
        let digits = (-((y.end - y.start) / 6.0).log10().floor()).clamp(0.0, 8.0) as usize;
        let names = &self.names;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.stroke_width(scale))
            .axis_style(FAINT.stroke_width(scale))
            .x_labels(if names.is_empty() { 5 } else { 2 * names.len() + 1 })
            .y_labels(6)
            .x_label_formatter(&|v| {
                if names.is_empty() {
                    return if v.abs() >= 10.0 || v.fract() == 0.0 { format!("{v:.0}") } else { format!("{v}") };
                }
                let near = (v - v.round()).abs() < 1e-6 && *v > -0.5;
                names.get(v.round().max(0.0) as usize).filter(|_| near).cloned().unwrap_or_default()
            })
            .y_label_formatter(&|v| format!("{v:.digits$}"))
            .label_style(text(if names.len() > 4 { 10 } else { 13 }, &INK))
            .axis_desc_style(text(13, &INK))
            .x_desc(self.x_label.as_str())
            .y_desc(self.y_label.as_str())
            .set_all_tick_mark_size(s(3))
            .draw()
            .map_err(failed)?;
        for mark in &self.marks {
            let (name, points, colour) = mark.parts();
            let points = points.iter().copied().filter(|p| p.0.is_finite() && p.1.is_finite());
            let drawn = match mark {
                Mark::Points { .. } => chart.draw_series(points.map(|p| Circle::new(p, s(1), colour.filled()))),
                Mark::Line { .. } => chart.draw_series(LineSeries::new(points, colour.stroke_width(s(2)))),
                Mark::Bars { width, .. } => chart.draw_series(
                    points
                        .map(|(x, y)| Rectangle::new([(x - width / 2.0, 0.0), (x + width / 2.0, y)], colour.filled())),
                ),
            };
            let drawn = drawn.map_err(failed)?;
            drawn.label(name).legend(move |(x, y)| {
                Rectangle::new([(x, y - s(4) as i32), (x + s(14) as i32, y + s(4) as i32)], colour.filled())
            });
        }
        if !self.marks.is_empty() {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperRight)
                .background_style(WHITE.mix(0.85))
                .border_style(GRID)
                .label_font(text(11, &INK))
                .legend_area_size(s(20))
                .margin(s(6))
                .draw()
                .map_err(failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_mark_is_drawn_and_hostile_values_are_left_out() {
        for points in
            [vec![], vec![(1.0, 2.0)], vec![(0.0, f64::NAN), (f64::INFINITY, 1.0)], vec![(0.0, 0.0), (1.0, 1e30)]]
        {
            let name = "a < b".to_owned();
            let marks = vec![
                Mark::Points { name: name.clone(), points: points.clone(), colour: 0 },
                Mark::Line { name: name.clone(), points: points.clone(), colour: 9 },
                Mark::Bars { name, points, width: 0.4, colour: 1 },
            ];
            let axes = Axes { y_label: "rate".into(), marks, names: vec!["E".into(), "I".into()], ..Axes::default() };
            let figure = Figure { title: "t".into(), panels: vec![axes.clone(), Axes { names: vec![], ..axes }] };
            let svg = figure.svg().unwrap();
            assert!(svg.contains("a &lt; b") && svg.contains("rate"));
            assert_eq!(&figure.png().unwrap()[..8], b"\x89PNG\r\n\x1a\n");
        }
        assert!(Figure { title: String::new(), panels: vec![Axes::default()] }.svg().is_ok());
    }
}
