//! A loss curve as PNG: raw values faint, smoothed ones strong.

use std::path::Path;

use embedded_graphics::geometry::Point;
use embedded_graphics::mono_font::ascii::{FONT_7X13, FONT_9X15_BOLD};
use embedded_graphics::pixelcolor::Rgb888;
use embedded_graphics::text::Alignment;

use super::canvas::Canvas;
use super::error::{ObserveError, save_png};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 520;
const LEFT: i32 = 76;
const RIGHT: i32 = 24;
const TOP: i32 = 44;
const BOTTOM: i32 = 56;
const INK: Rgb888 = Rgb888::new(40, 40, 40);
const GRID: Rgb888 = Rgb888::new(228, 228, 228);
/// Faint and strong color of each curve.
const COLORS: [(Rgb888, Rgb888); MAX_CURVES] = [
    (Rgb888::new(178, 205, 235), Rgb888::new(31, 100, 180)),
    (Rgb888::new(244, 210, 170), Rgb888::new(214, 110, 20)),
    (Rgb888::new(190, 225, 190), Rgb888::new(30, 130, 50)),
    (Rgb888::new(220, 195, 230), Rgb888::new(130, 60, 160)),
    (Rgb888::new(240, 190, 190), Rgb888::new(170, 40, 40)),
    (Rgb888::new(185, 225, 225), Rgb888::new(20, 130, 140)),
    (Rgb888::new(225, 210, 190), Rgb888::new(120, 85, 50)),
    (Rgb888::new(215, 215, 215), Rgb888::new(90, 90, 90)),
    (Rgb888::new(245, 200, 225), Rgb888::new(205, 60, 140)),
    (Rgb888::new(220, 225, 175), Rgb888::new(125, 135, 20)),
];

/// Curves that a plot has colors for.
pub const MAX_CURVES: usize = 10;

/// One line of a plot; `points` are (x, y) with x ascending. Values that are not finite are left out.
pub struct Curve<'a> {
    pub label: &'a str,
    pub points: &'a [(f64, f64)],
}

/// Draws at most [`MAX_CURVES`] curves over the same axes; the others are left out.
///
/// # Errors
/// The picture cannot be written.
pub fn plot(path: &Path, title: &str, x_label: &str, curves: &[Curve<'_>]) -> Result<(), ObserveError> {
    save_png(&draw(title, x_label, curves).0, path)
}

fn draw(title: &str, x_label: &str, curves: &[Curve<'_>]) -> Canvas {
    let mut canvas = Canvas::white(WIDTH, HEIGHT);
    let curves: Vec<(&str, Vec<(f64, f64)>)> = curves
        .iter()
        .take(COLORS.len())
        .map(|curve| {
            let finite = curve.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite());
            (curve.label, finite.collect())
        })
        .collect();
    let points = || curves.iter().flat_map(|curve| curve.1.iter().copied());
    let x_axis = Axis::over(points().map(|point| point.0));
    let y_axis = Axis::over(points().map(|point| point.1));
    let place = |(x, y): (f64, f64)| {
        let (right, bottom) = (WIDTH as i32 - RIGHT, HEIGHT as i32 - BOTTOM);
        let x = f64::from(LEFT) + x_axis.fraction(x) * f64::from(right - LEFT);
        let y = f64::from(bottom) - y_axis.fraction(y) * f64::from(bottom - TOP);
        Point::new(x.round() as i32, y.round() as i32)
    };

    for x in x_axis.ticks() {
        let (bottom, top) = (place((x, y_axis.low)), place((x, y_axis.high)));
        canvas.line(bottom, top, GRID, 1);
        canvas.text(&x_axis.label(x), bottom + Point::new(0, 14), Alignment::Center, &FONT_7X13, INK);
    }
    for y in y_axis.ticks() {
        let (left, right) = (place((x_axis.low, y)), place((x_axis.high, y)));
        canvas.line(left, right, GRID, 1);
        canvas.text(&y_axis.label(y), left - Point::new(8, 0), Alignment::Right, &FONT_7X13, INK);
    }
    let corner = place((x_axis.low, y_axis.low));
    canvas.line(corner, place((x_axis.high, y_axis.low)), INK, 1);
    canvas.line(corner, place((x_axis.low, y_axis.high)), INK, 1);

    for ((_, points), (faint, _)) in curves.iter().zip(COLORS) {
        points.windows(2).for_each(|pair| canvas.line(place(pair[0]), place(pair[1]), faint, 1));
    }
    for (index, ((label, points), (_, strong))) in curves.iter().zip(COLORS).enumerate() {
        smooth(points).windows(2).for_each(|pair| canvas.line(place(pair[0]), place(pair[1]), strong, 2));
        let y = TOP + 12 + 18 * index as i32;
        let x = WIDTH as i32 - RIGHT - 16;
        canvas.line(Point::new(x - 24, y), Point::new(x, y), strong, 3);
        canvas.text(label, Point::new(x - 32, y), Alignment::Right, &FONT_7X13, INK);
    }
    canvas.text(title, Point::new(LEFT, TOP / 2), Alignment::Left, &FONT_9X15_BOLD, INK);
    let middle = Point::new((LEFT + WIDTH as i32 - RIGHT) / 2, HEIGHT as i32 - 16);
    canvas.text(x_label, middle, Alignment::Center, &FONT_7X13, INK);
    canvas
}

/// Fewer points, such as those of evaluations, are drawn as they are.
const MIN_SMOOTHED: usize = 40;

/// Returns the mean over a moving window of a fiftieth of the points, centered.
fn smooth(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let half = if points.len() < MIN_SMOOTHED { 0 } else { (points.len() / 100).max(1) };
    (0..points.len())
        .map(|at| {
            // The same on both sides, so that the ends are not pulled toward the middle.
            let half = half.min(at).min(points.len() - 1 - at);
            let window = &points[at - half..=at + half];
            (points[at].0, window.iter().map(|point| point.1).sum::<f64>() / window.len() as f64)
        })
        .collect()
}

struct Axis {
    low: f64,
    high: f64,
    /// Distance of ticks: 1, 2 or 5 times a power of ten.
    step: f64,
}

impl Axis {
    /// Makes the axis of whole steps around the values: about six.
    fn over(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            (low, high) = (0.0, 1.0);
        } else if high - low <= f64::EPSILON * high.abs().max(1.0) {
            (low, high) = (low - 0.5, high + 0.5);
        }
        let rough = (high - low) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|&m| m * power >= rough).unwrap_or(10.0) * power;
        Self { low: (low / step).floor() * step, high: (high / step).ceil() * step, step }
    }

    fn fraction(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        let count = ((self.high - self.low) / self.step).round() as usize;
        (0..=count.min(50)).map(|tick| self.low + tick as f64 * self.step)
    }

    fn label(&self, value: f64) -> String {
        let decimals = (-self.step.log10().floor()).clamp(0.0, 9.0) as usize;
        if value.abs() >= 1e6 || (value != 0.0 && self.step < 1e-9) {
            return format!("{value:.1e}");
        }
        format!("{:.decimals$}", if value == 0.0 { 0.0 } else { value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        let labels = |values: &[f64]| {
            let axis = Axis::over(values.iter().copied());
            axis.ticks().map(|tick| axis.label(tick)).collect::<Vec<_>>()
        };
        assert_eq!(labels(&[0.03, 2.9]), ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"]);
        assert_eq!(labels(&[0.0, 499.0]), ["0", "100", "200", "300", "400", "500"]);
        assert_eq!(labels(&[3.0, 3.0]).first().unwrap(), "2.4");
        assert_eq!(labels(&[]).len(), 6);
    }

    #[test]
    fn smoothing_keeps_a_line_a_line_and_damps_noise() {
        let line: Vec<_> = (0..300).map(|x| (f64::from(x), 2.0 * f64::from(x))).collect();
        assert!(smooth(&line).iter().zip(&line).all(|(a, b)| (a.1 - b.1).abs() < 1e-9));
        let noise: Vec<_> = (0..300).map(|x| (f64::from(x), f64::from(x % 2))).collect();
        assert!(smooth(&noise)[10..290].iter().all(|point| (point.1 - 0.5).abs() < 0.1));
    }

    #[test]
    fn the_curve_goes_from_corner_to_corner() {
        let points: Vec<_> = (0..=100).map(|x| (f64::from(x), 1.0 - f64::from(x) / 100.0)).collect();
        let with_nan = [&points[..], &[(101.0, f64::NAN)]].concat();
        let canvas = draw("loss", "step", &[Curve { label: "train", points: &with_nan }]).0;
        let is_line = |x: i32, y: i32| (-2..=2).any(|d| canvas.get_pixel(x as u32, (y + d) as u32).0 == [31, 100, 180]);
        assert!(is_line(LEFT + 2, TOP + 1));
        assert!(is_line((LEFT + WIDTH as i32 - RIGHT) / 2, (TOP + HEIGHT as i32 - BOTTOM) / 2));
        draw("empty", "step", &[]);
        draw("one", "step", &[Curve { label: "a", points: &[(1.0, 1.0)] }, Curve { label: "b", points: &[] }]);
    }

    #[test]
    fn a_picture_that_cannot_be_written_is_named() {
        let error = plot(Path::new("/no/such/loss.png"), "", "", &[]).unwrap_err().to_string();
        assert!(error.contains("/no/such/loss.png"), "{error}");
    }
}
