//! A curve of bounded size: neighbouring points become their mean once there are too many.

/// Points that are kept at most: more than any terminal can show.
const MOST: usize = 2048;

#[derive(Clone, Default)]
pub struct Series {
    points: Vec<(f64, f64)>,
    /// So many values make a point, less one bit: 0 for one value, 1 for two, 2 for four.
    level: u32,
    /// The sum and the number of values that do not make a point yet.
    pending: (f64, f64, usize),
}

impl Series {
    /// Adds a value; what is not finite cannot be drawn.
    pub fn push(&mut self, x: f64, y: f64) {
        if !y.is_finite() {
            return;
        }
        let (sum_x, sum_y, count) = self.pending;
        self.pending = (sum_x + x, sum_y + y, count + 1);
        if self.pending.2 < 1 << self.level {
            return;
        }
        let (sum_x, sum_y, count) = std::mem::take(&mut self.pending);
        self.points.push((sum_x / count as f64, sum_y / count as f64));
        if self.points.len() >= MOST {
            self.points = self.points.chunks(2).map(mean).collect();
            self.level += 1;
        }
    }

    /// Removes what came after `x`.
    pub fn truncate(&mut self, x: f64) {
        self.pending = (0.0, 0.0, 0);
        self.points.retain(|point| point.0 <= x);
    }

    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// At most `count` values that stand for all, in their order.
    pub fn resampled(&self, count: usize) -> Vec<f64> {
        let of_each = self.points.len().div_ceil(count.max(1)).max(1);
        self.points.chunks(of_each).map(|points| mean(points).1).collect()
    }
}

fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    (sum.0 / points.len() as f64, sum.1 / points.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_shape_in_bounded_memory() {
        let mut series = Series::default();
        (0..100_000).for_each(|x| series.push(f64::from(x), 2.0 * f64::from(x)));
        let points = series.points();
        assert!((MOST / 2..MOST).contains(&points.len()), "{}", points.len());
        assert!(points.iter().all(|(x, y)| *y == 2.0 * x) && points.is_sorted_by(|a, b| a.0 < b.0));
        assert!(points[0].0 < 100.0 && points[points.len() - 1].0 > 99_800.0);
        assert_eq!(series.resampled(10).len(), 10);
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out_and_what_is_void_removed() {
        let mut series = Series::default();
        for (x, y) in [(1.0, 5.0), (2.0, f64::NAN), (3.0, f64::INFINITY), (4.0, 4.0)] {
            series.push(x, y);
        }
        assert_eq!(series.points(), [(1.0, 5.0), (4.0, 4.0)]);
        series.truncate(3.0);
        assert_eq!(series.points(), [(1.0, 5.0)]);
    }
}
