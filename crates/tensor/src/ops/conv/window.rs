//! How the CPU reads the source of a convolution: in place if the kernel stays within the image, else from a
//! zero-padded copy, in which every kernel element is at a fixed offset from its pixel.

use super::geometry::Axis;
use crate::cpu::Places;
use std::ops::Range;

/// The elements that a kernel reads in both dimensions, and the size of its source.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub axes: [Axis; 2],
    /// Height and width of the source.
    pub source: [usize; 2],
}

/// In which form a block of lines is read.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    InPlace,
    /// The zero-padded source, or a part of it.
    Padded,
    /// A row (lines, width) per kernel element (im2col), for kernels that reach far beyond the image.
    Gathered,
}

/// Where a block of lines is read: element i of (channels, taps) for pixel (a, b) at
/// `a * line + b * pixel + places[i]`.
pub(super) struct Layout {
    window: Window,
    channels: usize,
    form: Form,
    /// Start and size of the region to read in the source, (height, width) each.
    first: [isize; 2],
    size: [usize; 2],
    /// The elements of an image's copy, 0 if there is none.
    pub copied: usize,
    pub line: usize,
    pub pixel: usize,
    pub places: Places,
}

impl Window {
    pub fn pixels(&self) -> usize {
        self.axes[0].count * self.axes[1].count
    }

    pub fn taps(&self) -> usize {
        self.axes[0].taps * self.axes[1].taps
    }

    /// The first element that is read in a dimension by the first pixel, and how many from it to the last by the last
    /// of `count`.
    fn reach(&self, dim: usize, count: usize) -> (isize, usize) {
        let Axis { stride, start, step, taps, .. } = self.axes[dim];
        let span = (taps as isize - 1) * step;
        (start + span.min(0), ((count as isize - 1) * stride + span.abs() + 1) as usize)
    }

    /// For blocks of at most `lines` lines. There must be lines, and taps.
    pub fn layout(&self, channels: usize, lines: usize) -> Layout {
        let [vertical, horizontal] = self.axes;
        let (whole, across) = (self.reach(0, vertical.count), self.reach(1, horizontal.count));
        let inside = |(first, size): (isize, usize), source: usize| first >= 0 && first as usize + size <= source;
        let size = [self.reach(0, lines).1, across.1];
        let pixels = lines * horizontal.count;
        let padded = size[0].checked_mul(size[1]).filter(|padded| *padded <= 4 * self.taps() * pixels);
        let form = match padded {
            _ if inside(whole, self.source[0]) && inside(across, self.source[1]) => Form::InPlace,
            Some(_) => Form::Padded,
            None => Form::Gathered,
        };
        // Elements from a channel to the next, from a line to the next, and from a column to the next.
        let (plane, width) = match form {
            Form::InPlace => (self.source[0] * self.source[1], self.source[1]),
            Form::Padded => (size[0] * size[1], size[1]),
            Form::Gathered => (self.taps() * pixels, horizontal.count),
        };
        let from_first = |axis: &Axis, tap: usize| {
            let span = (axis.taps as isize - 1) * axis.step;
            (tap as isize * axis.step - span.min(0)) as usize
        };
        let mut places = Vec::with_capacity(channels * self.taps());
        for channel in 0..channels {
            for tap in 0..self.taps() {
                let (i, j) = (tap / horizontal.taps, tap % horizontal.taps);
                places.push(
                    channel * plane
                        + match form {
                            Form::Gathered => tap * pixels,
                            _ => from_first(&vertical, i) * width + from_first(&horizontal, j),
                        },
                );
            }
        }
        let gathered = form == Form::Gathered;
        Layout {
            window: *self,
            channels,
            form,
            first: [whole.0, across.0],
            size,
            copied: if form == Form::InPlace { 0 } else { channels * plane },
            line: if gathered { width } else { vertical.stride as usize * width },
            pixel: if gathered { 1 } else { horizontal.stride as usize },
            places: Places::new(places),
        }
    }
}

/// Of `count` elements from `first` on those that lie within 0..`size`.
fn inside(first: isize, count: usize, size: usize) -> Range<usize> {
    let place = |bound: usize| (bound as isize - first).clamp(0, count as isize) as usize;
    place(0)..place(size)
}

/// Lines of small images are copied in two pieces that overlap, which takes less time than a call.
#[inline(always)]
fn copy_short(from: &[f32], to: &mut [f32]) {
    #[inline(always)]
    fn pieces<const N: usize>(from: &[f32], to: &mut [f32]) {
        if let (Some(head), Some(tail)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) {
            to[..N].copy_from_slice(head);
            let end = to.len();
            to[end - N..].copy_from_slice(tail);
        }
    }
    match from.len() {
        4..8 => pieces::<4>(from, to),
        8..16 => pieces::<8>(from, to),
        16..32 => pieces::<16>(from, to),
        _ => to.copy_from_slice(from),
    }
}

impl Layout {
    /// Where pixel 0 of a line is read of a source that is not copied.
    pub fn begin(&self, line: usize) -> usize {
        match self.form {
            Form::InPlace => self.first[0] as usize * self.window.source[1] + self.first[1] as usize + line * self.line,
            Form::Padded | Form::Gathered => 0,
        }
    }

    /// From an image to the next in what is read, where they are so far `apart` in the source.
    pub fn apart(&self, apart: usize) -> usize {
        if self.copied == 0 { apart } else { self.copied }
    }

    /// Copies what these lines read of `source` (channels, H, W) to `out`, which has [`Layout::copied`] elements.
    pub fn copy(&self, source: &[f32], lines: Range<usize>, out: &mut [f32]) {
        match self.form {
            Form::InPlace => {}
            Form::Gathered => self.gather(source, lines, out),
            Form::Padded => {
                let [height, width] = self.size;
                let planes = source.chunks_exact(self.window.source[0] * self.window.source[1]);
                let top = self.first[0] + lines.start as isize * self.window.axes[0].stride;
                let (down, across) = (inside(top, height, self.window.source[0]), self.inside_line());
                for (plane, out) in planes.zip(out.chunks_exact_mut(height * width)) {
                    out.fill(0.0);
                    if down.is_empty() || across.is_empty() {
                        continue;
                    }
                    let first = (top + down.start as isize) as usize;
                    let left = (self.first[1] + across.start as isize) as usize;
                    let from = plane.chunks_exact(self.window.source[1]).skip(first);
                    for (line, from) in out.chunks_exact_mut(width).take(down.end).skip(down.start).zip(from) {
                        copy_short(&from[left..][..across.len()], &mut line[across.clone()]);
                    }
                }
            }
        }
    }

    /// The elements of a line of the copy that are elements of the source.
    fn inside_line(&self) -> Range<usize> {
        inside(self.first[1], self.size[1], self.window.source[1])
    }

    /// `line[i] = plane[y, x + i stride]`, zero where that is outside.
    #[inline]
    fn copy_line(&self, plane: &[f32], y: isize, x: isize, stride: usize, line: &mut [f32]) {
        let [height, width] = self.window.source;
        if y < 0 || y as usize >= height {
            return line.fill(0.0);
        }
        let source = &plane[y as usize * width..][..width];
        // The first i that is inside, and the first that is beyond.
        let first_at = |bound: isize| ((bound - x).max(0) as usize).div_ceil(stride).min(line.len());
        let (from, to) = (first_at(0), first_at(width as isize));
        line[..from].fill(0.0);
        line[to..].fill(0.0);
        if from < to {
            let source = &source[(x + (from * stride) as isize) as usize..];
            if stride == 1 {
                line[from..to].copy_from_slice(&source[..to - from]);
            } else {
                line[from..to].iter_mut().zip(source.iter().step_by(stride)).for_each(|(line, x)| *line = *x);
            }
        }
    }

    fn gather(&self, source: &[f32], lines: Range<usize>, out: &mut [f32]) {
        let [vertical, horizontal] = self.window.axes;
        let planes = source.chunks_exact(self.window.source[0] * self.window.source[1]);
        let taps = self.window.taps();
        for (plane, out) in planes.zip(out.chunks_exact_mut(self.copied / self.channels)) {
            for (tap, out) in out.chunks_exact_mut(self.copied / self.channels / taps).enumerate() {
                let dy = vertical.start + (tap / horizontal.taps) as isize * vertical.step;
                let x = horizontal.start + (tap % horizontal.taps) as isize * horizontal.step;
                for (a, line) in lines.clone().zip(out.chunks_exact_mut(horizontal.count)) {
                    self.copy_line(plane, a as isize * vertical.stride + dy, x, horizontal.stride as usize, line);
                }
            }
        }
    }
}
