//! Draws. Every function returns one SVG whose colours are those of the light page; the style sheet of the page has the
//! dark ones.

use std::io;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::{Axis, number};

/// One colour for each run; later runs begin again and are dashed.
pub(super) const COLOURS: [RGBColor; 8] = [
    RGBColor(0x25, 0x63, 0xEB),
    RGBColor(0xD9, 0x77, 0x06),
    RGBColor(0x05, 0x96, 0x69),
    RGBColor(0x93, 0x33, 0xEA),
    RGBColor(0xDB, 0x27, 0x77),
    RGBColor(0x08, 0x91, 0xB2),
    RGBColor(0x65, 0xA3, 0x0D),
    RGBColor(0x57, 0x53, 0x4E),
];
const INK: RGBColor = RGBColor(0x37, 0x41, 0x51);
const MUTED: RGBColor = RGBColor(0x6B, 0x72, 0x80);
const GRID: RGBColor = RGBColor(0xE5, 0xE7, 0xEB);
const LIMIT: RGBColor = RGBColor(0xB9, 0x1C, 0x1C);

/// Width of every plot in its own units; the page scales it.
const WIDTH: u32 = 640;
const HEIGHT: u32 = 330;
/// Text in those units. The backend divides by 1.24.
const TEXT: f64 = 15.5;

/// A line.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    /// Index into [`COLOURS`], any number.
    pub colour: usize,
    /// Drawn dashed: the generator beside the server.
    pub dashed: bool,
    /// Pairs of x and y, in the units of the axes.
    pub points: Vec<[f64; 2]>,
}

/// A plot of lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    pub curves: Vec<Curve>,
    /// Name and unit of x, under the axis.
    pub x_name: String,
    /// True if each reading is marked, not only joined.
    pub marked: bool,
    /// True if the area between the first curve and zero is tinted.
    pub filled: bool,
    /// From and to of y: the range of valid values.
    pub band: Option<(f64, f64)>,
    /// A budget and its name.
    pub limit: Option<(f64, String)>,
}

/// A group of horizontal bars.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub name: String,
    /// Colour and value of each bar.
    pub bars: Vec<(usize, f64)>,
    /// Upper limit of the value.
    pub limit: Option<f64>,
}

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("a plot could not be drawn: {error}"))
}

fn text(size: f64, colour: &RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(colour)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn svg(height: u32, draw: impl FnOnce(&Area<'_>) -> io::Result<()>) -> io::Result<String> {
    let mut written = String::new();
    {
        let area = SVGBackend::with_string(&mut written, (WIDTH, height)).into_drawing_area();
        draw(&area)?;
        area.present().map_err(failed)?;
    }
    // The page sizes it: only the view box stays.
    let head = format!("<svg width=\"{WIDTH}\" height=\"{height}\"");
    let written = written.replacen(&head, "<svg role=\"img\"", 1);
    Ok(written.split_once("<svg").map_or_else(String::new, |(_, rest)| format!("<svg{rest}")))
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, pixels: (i32, i32)) -> i32 {
        // A value far beyond the axis leaves the plot at its edge: memory of the whole host can shrink by gigabytes.
        let share = ((place - self.range.0) / (self.range.1 - self.range.0).max(f64::MIN_POSITIVE)).clamp(-8.0, 8.0);
        pixels.0 + (share * f64::from(pixels.1 - pixels.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.labels.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, place: &f64) -> String {
        self.text(*place)
    }
}

/// Lines over these axes.
pub(super) fn lines(plot: &Lines, x: &Axis, y: &Axis) -> io::Result<String> {
    svg(HEIGHT, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(22)
            .set_label_area_size(LabelAreaPosition::Left, 58)
            .set_label_area_size(LabelAreaPosition::Bottom, 48)
            .build_cartesian_2d(x.clone(), y.clone())
            .map_err(failed)?;
        if let Some((low, high)) = plot.band {
            let corners = [(x.range.0, low), (x.range.1, high.min(y.range.1))];
            let tint = COLOURS[plot.curves.first().map_or(0, |curve| curve.colour % COLOURS.len())].mix(0.13);
            chart.draw_series([Rectangle::new(corners, tint.filled())]).map_err(failed)?;
        }
        mesh(&mut chart, &plot.x_name)?;
        for (at, curve) in plot.curves.iter().enumerate() {
            let colour = COLOURS[curve.colour % COLOURS.len()];
            let points: Vec<(f64, f64)> = curve.points.iter().map(|[at, value]| (x.place(*at), *value)).collect();
            if plot.filled && at == 0 {
                let tint = colour.mix(0.10);
                chart.draw_series(AreaSeries::new(points.iter().copied(), 0.0, tint)).map_err(failed)?;
            }
            let stroke = colour.stroke_width(2);
            if curve.dashed || curve.colour >= COLOURS.len() {
                let dashes = DashedLineSeries::new(points.iter().copied(), 6, 4, stroke);
                chart.draw_series(dashes).map_err(failed)?;
            } else {
                chart.draw_series(LineSeries::new(points.iter().copied(), stroke)).map_err(failed)?;
            }
            if plot.marked || points.len() == 1 {
                let dots = points.iter().map(|point| Circle::new(*point, 4, colour.filled()));
                chart.draw_series(dots).map_err(failed)?;
            }
        }
        if let Some((limit, name)) = &plot.limit {
            let ends = [(x.range.0, *limit), (x.range.1, *limit)];
            chart.draw_series(DashedLineSeries::new(ends, 4, 4, LIMIT.stroke_width(1))).map_err(failed)?;
            let style = text(TEXT, &LIMIT).pos(Pos::new(HPos::Right, VPos::Bottom));
            let label = EmptyElement::at((x.range.1, *limit)) + Text::new(name.clone(), (0, -5), style);
            chart.draw_series([label]).map_err(failed)?;
        }
        Ok(())
    })
}

/// Axes with their labels, and lines across at the values of the upright one.
fn mesh(chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<Axis, Axis>>, x_name: &str) -> io::Result<()> {
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(MUTED)
        .set_all_tick_mark_size(4)
        .label_style(text(TEXT, &MUTED))
        .axis_desc_style(text(TEXT, &MUTED))
        .x_desc(x_name)
        .draw()
        .map_err(failed)
}

/// Upright columns, one for each name, with the mean as a line.
pub(super) fn columns(values: &[(String, f64)], colour: usize, x_name: &str) -> io::Result<String> {
    let mean = values.iter().map(|(_, value)| value).sum::<f64>() / values.len().max(1) as f64;
    let y = Axis::from_zero(values.iter().map(|(_, value)| *value).fold(mean, f64::max) * 1.06, 5);
    let count = values.len() as f64;
    // Every name when there are few, else about a dozen of them.
    let step = values.len().div_ceil(16).max(1);
    let names = values.iter().enumerate().step_by(step).map(|(at, (name, _))| (at as f64 + 0.5, name.clone()));
    let x = Axis { range: (0.0, count), labels: names.collect(), logarithmic: false };
    svg(HEIGHT, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(22)
            .set_label_area_size(LabelAreaPosition::Left, 66)
            .set_label_area_size(LabelAreaPosition::Bottom, 48)
            .build_cartesian_2d(x, y.clone())
            .map_err(failed)?;
        mesh(&mut chart, x_name)?;
        let fill = COLOURS[colour % COLOURS.len()].filled();
        let half = if values.len() > 40 { 0.45 } else { 0.32 };
        let column = |(at, (_, value)): (usize, &(String, f64))| {
            let middle = at as f64 + 0.5;
            Rectangle::new([(middle - half, 0.0), (middle + half, *value)], fill)
        };
        chart.draw_series(values.iter().enumerate().map(column)).map_err(failed)?;
        let ends = [(0.0, mean), (count, mean)];
        chart.draw_series(DashedLineSeries::new(ends, 4, 4, INK.stroke_width(1))).map_err(failed)?;
        let style = text(TEXT, &INK).pos(Pos::new(HPos::Right, VPos::Bottom));
        let label = format!("mean {}", number(mean.round()));
        let label = EmptyElement::at((count, mean)) + Text::new(label, (0, -5), style);
        chart.draw_series([label]).map_err(failed)?;
        Ok(())
    })
}

const BAR: i32 = 17;
const GAP: i32 = 3;
const NAME: i32 = 24;
const BETWEEN: i32 = 14;
/// Room for a value behind its bar.
const LABEL: i32 = 90;

/// Horizontal bars in groups, each with its value; all start at zero on one scale.
pub(super) fn bars(groups: &[Group], unit: &str) -> io::Result<String> {
    let rows: usize = groups.iter().map(|group| group.bars.len()).sum();
    let height = rows as i32 * (BAR + GAP) + groups.len() as i32 * (NAME + BETWEEN) + 8;
    let values = groups.iter().flat_map(|group| group.bars.iter().map(|(_, value)| *value).chain(group.limit));
    let largest = values.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    // Room for the value behind the longest bar.
    let scale = f64::from(WIDTH - 110) / largest;
    let along = |value: f64| (value.max(0.0) * scale).round() as i32;
    svg(height as u32, |area| {
        let mut top = 4;
        for group in groups {
            let style = text(TEXT, &INK).pos(Pos::new(HPos::Left, VPos::Top));
            area.draw(&Text::new(group.name.clone(), (0, top), style)).map_err(failed)?;
            top += NAME;
            let first = top;
            for (colour, value) in &group.bars {
                let end = along(*value).max(1);
                // The line of a limit must not strike the text through.
                let limit = group.limit.map(along).filter(|limit| (0..LABEL).contains(&(limit - end)));
                bar(area, *colour, (end, top))?;
                label(area, format!("{} {unit}", number(*value)), (limit.unwrap_or(end) + 7, top + BAR / 2))?;
                top += BAR + GAP;
            }
            if let Some(limit) = group.limit {
                let ends = vec![(along(limit), first - 4), (along(limit), top - GAP + 4)];
                area.draw(&PathElement::new(ends, LIMIT.stroke_width(2))).map_err(failed)?;
            }
            top += BETWEEN;
        }
        Ok(())
    })
}

fn bar(area: &Area<'_>, colour: usize, (end, top): (i32, i32)) -> io::Result<()> {
    let fill = COLOURS[colour % COLOURS.len()].filled();
    area.draw(&Rectangle::new([(0, top), (end, top + BAR)], fill)).map_err(failed)
}

fn label(area: &Area<'_>, what: String, at: (i32, i32)) -> io::Result<()> {
    let style = text(TEXT, &INK).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(what, at, style)).map_err(failed)
}

/// At most this many points of a curve are drawn; of more, the largest of each stretch.
pub(super) fn thinned(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    const POINTS_MAX: usize = 1_200;
    let stretch = points.len().div_ceil(POINTS_MAX).max(1);
    let largest = |part: &[[f64; 2]]| part.iter().copied().max_by(|a, b| a[1].total_cmp(&b[1]));
    points.chunks(stretch).filter_map(largest).collect()
}
