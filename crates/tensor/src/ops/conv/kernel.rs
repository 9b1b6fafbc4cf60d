//! The kernel of all passes of a convolution, and its launches (`shaders/conv.wgsl`).

use super::cpu;
use super::geometry::{ConvOptions, Geometry};
use super::*;
use crate::gpu::{Limits, Operand, Param, Plan, Value, buffer, param};
use crate::ops::matmul::{MatMul, split_k_reduce};
use crate::shader;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// Image, weight and optional bias to result.
    Forward,
    /// The result's gradient, weight and optional bias to the image's gradient: the forward pass of the transposed
    /// convolution.
    Input,
    /// Image and the result's gradient to the weight's gradient.
    Weight,
}

pub(super) struct Conv {
    pub geometry: Geometry,
    pub pass: Pass,
    pub bias: bool,
    /// Whether it accumulates into the weight's gradient.
    pub accumulate: bool,
}

/// A workgroup of 256 threads computes `bm` x `bn` elements, of k `bk` at a time; each thread `tm` x `tn`.
#[derive(Clone, Copy)]
struct Tile {
    bm: usize,
    bn: usize,
    bk: usize,
    tm: usize,
    tn: usize,
}

/// The largest has the most FMAs per gathered element. All fit in 16 KiB of workgroup memory.
const TILES: [Tile; 3] = [
    Tile { bm: 128, bn: 128, bk: 8, tm: 8, tn: 8 },
    Tile { bm: 64, bn: 128, bk: 16, tm: 4, tn: 8 },
    Tile { bm: 64, bn: 64, bk: 16, tm: 4, tn: 4 },
];
/// For few channels.
const FLAT: Tile = Tile { bm: 32, bn: 128, bk: 16, tm: 4, tn: 4 };
/// With so few rows a thread computes all of them (`shaders/conv_direct.wgsl`), of up to four pixels.
const DIRECT_ROWS: usize = 4;
/// Two workgroups for each of the 132 SMs of the largest GPUs.
const ENOUGH: usize = 264;

impl Tile {
    fn count(&self, m: usize, n: usize) -> [usize; 2] {
        [m.div_ceil(self.bm), n.div_ceil(self.bn)]
    }

    /// The largest tile that is not mostly padding and gives enough workgroups for `times` matrices of m x n elements.
    fn select(m: usize, n: usize, times: usize) -> Tile {
        if m <= FLAT.bm {
            return FLAT;
        }
        let fits = |tile: &Tile| m > tile.bm / 2 && tile.count(m, n).iter().product::<usize>() * times >= ENOUGH;
        TILES.into_iter().find(fits).unwrap_or(TILES[2])
    }

    fn values(&self) -> Vec<(&'static str, Value)> {
        let Tile { bm, bn, bk, tm, tn } = *self;
        [("BM", bm), ("BN", bn), ("BK", bk), ("TM", tm), ("TN", tn)].map(|(name, size)| (name, size.into())).to_vec()
    }
}

impl Kernel for Conv {
    fn name(&self) -> &'static str {
        match self.pass {
            Pass::Forward => "conv2d",
            Pass::Input => "conv2d_backward_input",
            Pass::Weight => "conv2d_backward_weight",
        }
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![match self.pass {
            Pass::Forward => self.geometry.result_spec(),
            Pass::Input => self.geometry.image_spec(),
            Pass::Weight => self.geometry.weight_spec(),
        }])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(self.geometry.flops(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (first, second) = (inputs[0].f32(), inputs[1].f32());
        let bias = self.bias.then(|| inputs[2].f32());
        let output = outputs[0].f32();
        match self.pass {
            Pass::Forward => cpu::forward(&self.geometry, first, second, bias, output),
            Pass::Input => cpu::input_gradient(&self.geometry, first, second, bias, output),
            Pass::Weight => cpu::weight_gradient(&self.geometry, first, second, self.accumulate, output),
        }
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], limits: &Limits) -> Plan {
        match self.pass {
            Pass::Weight => self.weight_plan(limits),
            _ => self.pixels_plan(),
        }
    }
}

/// Two parameters, of the height and of the width.
fn both(names: [&'static str; 2], values: [usize; 2]) -> [Param; 2] {
    [param(names[0], values[0]), param(names[1], values[1])]
}

impl Conv {
    fn options(&self) -> [Param; 6] {
        let ConvOptions { stride, padding, dilation, .. } = self.geometry.options;
        let [[a, b], [c, d], [e, f]] = [
            both(["stride_h", "stride_w"], stride),
            both(["padding_h", "padding_w"], padding),
            both(["dilation_h", "dilation_w"], dilation),
        ];
        [a, b, c, d, e, f]
    }

    /// Each pixel of the result, or of the image.
    fn pixels_plan(&self) -> Plan {
        let g = &self.geometry;
        let forward = self.pass == Pass::Forward;
        let (channels, m) = if forward { (g.c_in, g.c_out) } else { (g.c_out, g.c_in) };
        let (from, to) = if forward { (g.image, g.result) } else { (g.result, g.image) };
        let strided = !forward && g.options.stride != [1; 2];
        let residues = if strided { [g.residues(0), g.residues(1)] } else { [1; 2] };
        // Of the residue that has the most.
        let columns = g.batch * to[0].div_ceil(residues[0]) * to[1].div_ceil(residues[1]);
        let parts = g.groups() * residues[0] * residues[1];
        let direct = m <= DIRECT_ROWS;
        let (mut values, [tiles_m, tiles_n]) = if direct {
            let each = if columns * parts >= ENOUGH * 4 * 256 { 4 } else { 1 };
            (vec![("M", m.into()), ("TN", each.into())], [1, columns.div_ceil(each * 256)])
        } else {
            let tile = Tile::select(m, columns, parts);
            (tile.values(), tile.count(m, columns))
        };
        let vec_out = !direct && !strided && (to[0] * to[1]).is_multiple_of(4);
        values.push(("pass", if forward { "forward" } else { "input" }.into()));
        // Divisions by constants are cheap; the taps of a residue are no constants.
        let kernel = if strided { [0; 2] } else { g.kernel };
        values.extend([("KH", kernel[0].into()), ("KW", kernel[1].into())]);
        values.extend([("strided", strided.into()), ("bias", self.bias.into())]);
        let mut buffers = vec![buffer("input", "f32", Operand::Input(0)), buffer("weight", "f32", Operand::Input(1))];
        buffers.extend(self.bias.then_some(buffer("bias", "f32", Operand::Input(2))));
        buffers.push(buffer("result", DType::F32.wgsl(if vec_out { 4 } else { 1 }), Operand::Output(0)));
        let mut params = vec![param("m", m), param("channels", channels), param("groups", g.groups())];
        params.extend([param("batch", g.batch), param("tiles_n", tiles_n)]);
        if !direct {
            values.push(("vec_out", vec_out.into()));
            params.push(param("tiles_m", tiles_m));
        }
        params.extend(both(["input_h", "input_w"], from));
        params.extend(both(["result_h", "result_w"], to));
        params.extend(self.options());
        if strided {
            let every = [0, 1].map(|dim| g.input_gradient(dim, 0).every);
            params.extend(both(["kernel_h", "kernel_w"], g.kernel));
            params.extend(both(["every_h", "every_w"], every));
            params.extend(both(["residues", "residues_w"], [residues[0] * residues[1], residues[1]]));
        }
        let workgroups = tiles_m * tiles_n * parts;
        let shader = if direct { shader!(conv_direct) } else { shader!(conv) };
        Plan::one(Launch { shader, values, buffers, params, workgroups })
    }

    /// The weight's gradient: split-K over the pixels for enough workgroups, then their sum.
    fn weight_plan(&self, limits: &Limits) -> Plan {
        let g = &self.geometry;
        let (m, n, k) = (g.c_out, g.c_in * g.kernel_size(), g.batch * g.result_pixels());
        let len = g.groups() * m * n;
        let tile = match (m, n) {
            (..=32, _) => FLAT,
            (_, ..=64) => TILES[2],
            (..=64, _) => TILES[1],
            _ => TILES[0],
        };
        let [tiles_m, tiles_n] = tile.count(m, n);
        let tiles = tiles_m * tiles_n * g.groups();
        // So many that each has at least eight steps of k, and that their results fit a binding.
        let most = (k / (8 * tile.bk)).min(limits.binding_bytes as usize / (4 * len)).max(1);
        let k_slice = k.div_ceil((2 * ENOUGH).div_ceil(tiles).min(most)).next_multiple_of(tile.bk).max(tile.bk);
        let splits = k.div_ceil(k_slice).max(1);
        let split = splits > 1;
        let mut values = tile.values();
        values.push(("pass", "weight".into()));
        values.extend([("KH", g.kernel[0].into()), ("KW", g.kernel[1].into())]);
        values.extend([("strided", false.into()), ("vec_out", false.into())]);
        values.push(("accumulate", (self.accumulate && !split).into()));
        let pixels = g.result_pixels();
        let mut params = vec![param("m", m), param("n", n), param("k", k), param("k_slice", k_slice)];
        params.extend([param("splits", splits), param("tiles_m", tiles_m), param("tiles_n", tiles_n)]);
        params.extend([param("channels", g.c_in), param("groups", g.groups()), param("pixels", pixels)]);
        params.extend(both(["input_h", "input_w"], g.image));
        params.extend(both(["result_h", "result_w"], g.result));
        params.extend(self.options());
        // How far `bk` pixels lead.
        let [rows, columns] = [tile.bk % pixels / g.result[1], tile.bk % pixels % g.result[1]];
        params.extend([param("next_image", tile.bk / pixels), param("next_y", rows), param("next_x", columns)]);
        let result = if split { Operand::Scratch(0) } else { Operand::Output(0) };
        let buffers = vec![
            buffer("input", "f32", Operand::Input(0)),
            buffer("grad_result", "f32", Operand::Input(1)),
            buffer("result", "f32", result),
        ];
        let workgroups = tiles * splits;
        let mut plan = Plan::one(Launch { shader: shader!(conv), values, buffers, params, workgroups });
        if split {
            plan.scratch.push(4 * splits * len);
            let sum = MatMul { accumulate: self.accumulate, ..MatMul::default() };
            plan.launches.push(split_k_reduce(&sum, [1, len], splits, 0));
        }
        plan
    }
}
