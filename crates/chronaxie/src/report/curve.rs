//! Curves over epochs, drawn as SVG and PNG.

use super::canvas::{self, FAINT, FONT, GRID, INK, Picture, failed};
use crate::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Told apart by every common kind of colour vision (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0x00, 0x72, 0xb2), RGBColor(0xd5, 0x5e, 0x00), RGBColor(0x00, 0x9e, 0x73), RGBColor(0xcc, 0x79, 0xa7)];

/// One line: `(x, y)` in ascending x.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What the legend calls it.
    pub name: String,
    /// The points; those that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// Axes with some lines.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What is drawn upwards.
    pub label: String,
    /// The lines.
    pub lines: Vec<Line>,
    /// The largest and smallest value there can be, where there is one, as 0 and 1 of an accuracy.
    pub bounds: (Option<f64>, Option<f64>),
    /// Whether values are shown as percentages.
    pub percent: bool,
}

/// A picture of one or more panels side by side over the same x.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The heading.
    pub title: String,
    /// What is drawn to the right.
    pub x_label: String,
    /// From left to right.
    pub panels: Vec<Panel>,
}

impl Curve {
    /// The picture as SVG.
    ///
    /// # Errors
    /// `Value`, where the drawing library refuses.
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

impl Picture for Curve {
    const SIZE: (u32, u32) = (920, 400);

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>, scale: u32) -> Result<()> {
        let s = |n: u32| n * scale;
        let text = |size: u32, colour: &RGBColor| (FONT, s(size)).into_font().color(colour);
        area.fill(&WHITE).map_err(failed)?;
        area.draw_text(&self.title, &text(17, &INK), (s(24) as i32, s(16) as i32)).map_err(failed)?;
        let body = area.margin(s(44), s(8), s(8), s(16));
        let panels = body.split_evenly((1, self.panels.len().max(1)));
        let xs = || self.panels.iter().flat_map(|p| &p.lines).flat_map(|l| &l.points).map(|p| p.0);
        let (low, high) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
        let x = if low < high { low..high } else { 0.0..1.0 };
        for (panel, area) in self.panels.iter().zip(&panels) {
            self.draw_panel(panel, area, x.clone(), scale)?;
        }
        Ok(())
    }
}

impl Curve {
    fn draw_panel<B: DrawingBackend>(
        &self,
        panel: &Panel,
        area: &DrawingArea<B, Shift>,
        x: std::ops::Range<f64>,
        scale: u32,
    ) -> Result<()> {
        let s = |n: u32| n * scale;
        let text = |size: u32, colour: &RGBColor| (FONT, s(size)).into_font().color(colour);
        let y = panel.range();
        let mut chart = ChartBuilder::on(area)
            .margin(s(8))
            .x_label_area_size(s(44))
            .y_label_area_size(s(64))
            .build_cartesian_2d(x.clone(), y.clone())
            .map_err(failed)?;
        let (y_ticks, digits) = ticks(&y, panel.percent);
        let percent = panel.percent;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.stroke_width(scale))
            .axis_style(FAINT.stroke_width(scale))
            .x_labels(8)
            .y_labels(y_ticks)
            .x_label_formatter(&|v| if v.fract() == 0.0 { format!("{v:.0}") } else { format!("{v}") })
            .y_label_formatter(&|v| if percent { format!("{:.digits$} %", v * 100.0) } else { format!("{v:.digits$}") })
            .label_style(text(13, &INK))
            .axis_desc_style(text(13, &INK))
            .x_desc(self.x_label.as_str())
            .y_desc(panel.label.as_str())
            .set_all_tick_mark_size(s(3))
            .draw()
            .map_err(failed)?;
        for (i, line) in panel.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let style = colour.stroke_width(s(2));
            let points = || line.points.iter().copied().filter(|p| p.1.is_finite());
            chart
                .draw_series(LineSeries::new(points(), style))
                .map_err(failed)?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + s(18) as i32, y)], style));
            if let Some(last) = points().next_back() {
                chart.draw_series([Circle::new(last, s(3), colour.filled())]).map_err(failed)?;
            }
        }
        if !panel.lines.is_empty() {
            chart
                .configure_series_labels()
                .position(if panel.falls() { SeriesLabelPosition::UpperRight } else { SeriesLabelPosition::LowerRight })
                .background_style(WHITE.mix(0.85))
                .border_style(GRID)
                .label_font(text(13, &INK))
                .legend_area_size(s(24))
                .margin(s(8))
                .draw()
                .map_err(failed)?;
        }
        Ok(())
    }
}

impl Panel {
    fn values(&self) -> impl Iterator<Item = f64> {
        self.lines.iter().flat_map(|l| &l.points).map(|p| p.1).filter(|y| y.is_finite())
    }
    /// Whether the lines end below where they begin, so that the legend has room above.
    fn falls(&self) -> bool {
        let first = |l: &Line| l.points.first().map_or(0.0, |p| p.1);
        let last = |l: &Line| l.points.last().map_or(0.0, |p| p.1);
        self.lines.iter().map(last).sum::<f64>() < self.lines.iter().map(first).sum::<f64>()
    }
    /// The values with some air, within the bounds.
    fn range(&self) -> std::ops::Range<f64> {
        let (low, high) = self.values().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), y| (l.min(y), h.max(y)));
        if low > high {
            return 0.0..1.0;
        }
        let air = if low < high { 0.06 * (high - low) } else { 0.5 * high.abs().max(1e-6) };
        let low = self.bounds.0.map_or(low - air, |b| (low - air).max(b));
        // An upper bound is shown as a line, not as the frame.
        let high = self.bounds.1.map_or(high + air, |b| (high + air).min(b + 0.02 * (b - low).abs()));
        low..high
    }
}

/// How many labels, and digits behind the point that tell them apart.
fn ticks(range: &std::ops::Range<f64>, percent: bool) -> (usize, usize) {
    const LABELS: usize = 6;
    let step = (range.end - range.start) * if percent { 100.0 } else { 1.0 } / LABELS as f64;
    (LABELS, (-step.log10().floor()).clamp(0.0, 8.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: Vec<(f64, f64)>) -> Curve {
        let line = |name: &str| Line { name: name.into(), points: points.clone() };
        let panel = |label: &str, percent: bool| Panel {
            label: label.into(),
            lines: vec![line("training"), line("validation")],
            bounds: (Some(0.0), percent.then_some(1.0)),
            percent,
        };
        let panels = vec![panel("loss", false), panel("accuracy", true)];
        Curve { title: "a < b & c".into(), x_label: "epoch".into(), panels }
    }

    #[test]
    fn pictures_say_what_they_show() {
        let c = curve((1..=20).map(|e| (f64::from(e), 1.0 / f64::from(e))).collect());
        let svg = c.svg().unwrap();
        for word in ["loss", "accuracy", "epoch", "training", "validation", "a &lt; b &amp; c", "100 %"] {
            assert!(svg.contains(word), "{word}");
        }
        let png = c.png().unwrap();
        assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
        assert_eq!(png[16..24], [0, 0, 7, 48, 0, 0, 3, 32]);
    }

    #[test]
    fn hostile_values_make_pictures_too() {
        for points in [
            vec![],
            vec![(1.0, 0.5)],
            vec![(1.0, f64::NAN), (2.0, f64::INFINITY)],
            vec![(1.0, 0.0), (2.0, 0.0)],
            vec![(1.0, 1e30), (2.0, 1e-30), (3.0, f64::NAN)],
        ] {
            let c = curve(points);
            assert!(c.svg().is_ok() && c.png().is_ok(), "{c:?}");
        }
    }
}
