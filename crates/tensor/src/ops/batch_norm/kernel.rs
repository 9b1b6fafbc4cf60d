//! The kernels of batch and group norms: a plane is the elements of one N and one C, a set the planes that are
//! normalized together.

use super::*;
use crate::cpu::{sum_of, vectorized, with_scratch};
use crate::gpu::{Buffer, Limits, Operand, Param, Plan, buffer, param};
use crate::shader;
use rayon::prelude::*;

/// x as (N, C, size).
#[derive(Debug, Clone, Copy)]
pub(super) struct Planes {
    pub batch: usize,
    pub channels: usize,
    pub size: usize,
    /// Groups of a group norm; `None` for a batch norm, where a set is a channel.
    pub groups: Option<usize>,
}

impl Planes {
    fn count(&self) -> usize {
        self.batch * self.channels
    }

    fn sets(&self) -> usize {
        self.groups.map_or(self.channels, |groups| self.batch * groups)
    }

    /// Planes of a set: (how many, planes from one to the next).
    fn of_set(&self) -> (usize, usize) {
        self.groups.map_or((self.batch, self.channels), |groups| (self.channels / groups, 1))
    }

    /// The set of a plane.
    fn set(&self, plane: usize) -> usize {
        self.groups.map_or(plane % self.channels, |groups| plane / (self.channels / groups))
    }

    /// The first plane of a set.
    fn first(&self, set: usize) -> usize {
        self.groups.map_or(set, |groups| set * (self.channels / groups))
    }

    /// The planes of a set in their order.
    fn planes(&self, set: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let (count, apart) = self.of_set();
        let first = self.first(set);
        (0..count).map(move |i| first + i * apart)
    }

    /// 1 / the elements of a set.
    fn per_element(&self) -> f32 {
        1.0 / (self.of_set().0 * self.size) as f32
    }

    /// Elements per thread of an elementwise pass.
    fn vector(&self) -> usize {
        if self.size.is_multiple_of(4) { 4 } else { 1 }
    }

    /// The sizes, as parameters of every launch.
    fn params(&self) -> Vec<Param> {
        let (of_set, apart) = self.of_set();
        vec![
            param("channels", self.channels),
            param("channels_of_set", self.groups.map_or(0, |groups| self.channels / groups)),
            param("planes", self.count()),
            param("sets", self.sets()),
            param("of_set", of_set),
            param("apart", apart),
            param("per_element", self.per_element()),
        ]
    }

    /// A launch of `rows` reductions over `n` elements each, about four elements per thread.
    fn reduction(&self, pass: &'static str, rows: usize, n: usize, buffers: Vec<Buffer>, more: &[Param]) -> Launch {
        let lanes = n.div_ceil(4).next_power_of_two().min(256);
        Launch {
            shader: shader!(batch_norm),
            values: vec![
                ("pass", pass.into()),
                ("lanes", lanes.into()),
                ("by_group", self.groups.is_some().into()),
                ("of_x", true.into()),
                ("vector", 1u32.into()),
            ],
            buffers,
            params: [&[param("size", self.size)], &self.params()[..], more].concat(),
            workgroups: rows.div_ceil(256 / lanes),
        }
    }

    /// A launch with a thread for each vector of x.
    fn elementwise(&self, pass: &'static str, of_x: bool, buffers: Vec<Buffer>, more: &[Param]) -> Launch {
        let len = self.count() * self.size;
        Launch {
            shader: shader!(batch_norm),
            values: vec![
                ("pass", pass.into()),
                ("lanes", 1u32.into()),
                ("by_group", self.groups.is_some().into()),
                ("of_x", of_x.into()),
                ("vector", self.vector().into()),
            ],
            buffers,
            params: [&[param("len", len), param("size", self.size / self.vector())], &self.params()[..], more].concat(),
            workgroups: len.div_ceil(256 * self.vector()),
        }
    }

    fn rows_of(&self, x: &'static str, operand: Operand) -> Buffer {
        buffer(x, DType::F32.wgsl(self.vector()), operand)
    }
}

/// Mean and variance of each set. Input: x.
pub(super) struct Moments {
    pub planes: Planes,
}

impl Kernel for Moments {
    fn name(&self) -> &'static str {
        "batch_norm_moments"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new([self.planes.sets()], DType::F32); 2])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(4 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let (planes, x) = (self.planes, inputs[0].f32());
        let [mean, variance] = outputs else { unreachable!("two outputs") };
        // Of each plane its mean, then the sum of squares around it.
        with_scratch(2 * planes.count(), |moments| {
            moments.par_chunks_mut(2).zip(x.par_chunks(planes.size)).for_each(|(moments, x)| {
                vectorized(
                    #[inline(always)]
                    || {
                        let mean = sum_of([x], |[x]| x) / x.len() as f32;
                        moments[0] = mean;
                        moments[1] = sum_of([x], |[x]| (x - mean) * (x - mean));
                    },
                );
            });
            let moments = &*moments;
            mean.f32().par_iter_mut().zip(variance.f32()).enumerate().for_each(|(set, (mean, variance))| {
                let count = planes.of_set().0 as f32;
                let all = planes.planes(set).map(|plane| [moments[2 * plane], moments[2 * plane + 1]]);
                *mean = all.clone().map(|[mean, _]| mean).sum::<f32>() / count;
                let of_plane =
                    |[of_plane, squares]: [f32; 2]| squares + planes.size as f32 * (of_plane - *mean).powi(2);
                *variance = all.map(of_plane).sum::<f32>() * planes.per_element();
            });
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let planes = &self.planes;
        let of_planes =
            vec![buffer("x", "f32", Operand::Input(0)), buffer("moments", "vec2<f32>", Operand::Scratch(0))];
        let of_sets = vec![
            buffer("moments", "vec2<f32>", Operand::ReadScratch(0)),
            buffer("mean", "f32", Operand::Output(0)),
            buffer("variance", "f32", Operand::Output(1)),
        ];
        Plan {
            scratch: vec![8 * planes.count()],
            launches: vec![
                planes.reduction("moments", planes.count(), planes.size, of_planes, &[]),
                planes.reduction("combine", planes.sets(), planes.of_set().0, of_sets, &[]),
            ],
        }
    }
}

/// y. Inputs: x, mean, variance, weight, bias.
pub(super) struct Normalize {
    pub planes: Planes,
    pub eps: f32,
}

impl Kernel for Normalize {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(4 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let planes = self.planes;
        let [x, mean, variance, weight, bias] = [0, 1, 2, 3, 4].map(|i| inputs[i].f32());
        let rows = outputs[0].f32().par_chunks_mut(planes.size).zip(x.par_chunks(planes.size)).enumerate();
        rows.with_min_len((CHUNK / planes.size).max(1)).for_each(|(plane, (y, x))| {
            let (set, channel) = (planes.set(plane), plane % planes.channels);
            let (mean, rstd) = (mean[set], 1.0 / (variance[set] + self.eps).sqrt());
            let (weight, bias) = (weight[channel], bias[channel]);
            vectorized(
                #[inline(always)]
                || y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - mean) * rstd * weight + bias),
            );
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let planes = &self.planes;
        let buffers = vec![
            planes.rows_of("x", Operand::Input(0)),
            buffer("mean", "f32", Operand::Input(1)),
            buffer("variance", "f32", Operand::Input(2)),
            buffer("weight", "f32", Operand::Input(3)),
            buffer("bias", "f32", Operand::Input(4)),
            planes.rows_of("result", Operand::Output(0)),
        ];
        Plan::one(planes.elementwise("normalize", true, buffers, &[param("eps", self.eps)]))
    }
}

/// Moves the running mean and variance (outputs) towards those of the batch (inputs).
pub(super) struct UpdateRunning {
    pub channels: usize,
    pub momentum: f32,
    /// Elements of each channel.
    pub count: usize,
}

impl Kernel for UpdateRunning {
    fn name(&self) -> &'static str {
        "batch_norm_running"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(inputs.iter().map(|spec| (*spec).clone()).collect())
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(3 * self.channels, inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        for ((running, new), factor) in outputs.iter_mut().zip(inputs).zip(self.factors()) {
            for (running, new) in running.f32().iter_mut().zip(new.f32()) {
                *running = (1.0 - self.momentum) * *running + factor * new;
            }
        }
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let [of_mean, of_variance] = self.factors();
        Plan::one(Launch {
            shader: shader!(batch_norm),
            values: vec![
                ("pass", "running".into()),
                ("lanes", 1u32.into()),
                ("by_group", false.into()),
                ("of_x", true.into()),
                ("vector", 1u32.into()),
            ],
            buffers: vec![
                buffer("mean", "f32", Operand::Input(0)),
                buffer("variance", "f32", Operand::Input(1)),
                buffer("running_mean", "f32", Operand::Output(0)),
                buffer("running_variance", "f32", Operand::Output(1)),
            ],
            params: vec![
                param("len", self.channels),
                param("keep", 1.0 - self.momentum),
                param("of_mean", of_mean),
                param("of_variance", of_variance),
            ],
            workgroups: self.channels.div_ceil(256),
        })
    }
}

impl UpdateRunning {
    /// Weights of the new mean and variance.
    fn factors(&self) -> [f32; 2] {
        [self.momentum, self.momentum * self.count as f32 / (self.count - 1) as f32]
    }
}

/// (N, 2 C): for each N of every channel the sum of dy n, then of every channel that of dy. Inputs: dy, x, mean,
/// variance.
pub(super) struct PlaneSums {
    pub planes: Planes,
    pub eps: f32,
}

impl Kernel for PlaneSums {
    fn name(&self) -> &'static str {
        "batch_norm_backward_sums"
    }

    fn output_specs(&self, _: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![Spec::new([self.planes.batch, 2 * self.planes.channels], DType::F32)])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(5 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let planes = self.planes;
        let [dy, x, mean, variance] = [0, 1, 2, 3].map(|i| inputs[i].f32());
        let (channels, size) = (planes.channels, planes.size);
        outputs[0].f32().par_chunks_mut(2 * channels).enumerate().for_each(|(n, sums)| {
            let (dweight, dbias) = sums.split_at_mut(channels);
            dweight.par_iter_mut().zip(dbias).enumerate().for_each(|(channel, (dweight, dbias))| {
                let plane = n * channels + channel;
                let set = planes.set(plane);
                let (mean, rstd) = (mean[set], 1.0 / (variance[set] + self.eps).sqrt());
                let (dy, x) = (&dy[plane * size..][..size], &x[plane * size..][..size]);
                vectorized(
                    #[inline(always)]
                    || {
                        *dweight = rstd * sum_of([dy, x], |[dy, x]| dy * (x - mean));
                        *dbias = sum_of([dy], |[dy]| dy);
                    },
                );
            });
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let planes = &self.planes;
        let buffers = vec![
            buffer("grad_output", "f32", Operand::Input(0)),
            buffer("x", "f32", Operand::Input(1)),
            buffer("mean", "f32", Operand::Input(2)),
            buffer("variance", "f32", Operand::Input(3)),
            buffer("sums", "f32", Operand::Output(0)),
        ];
        Plan::one(planes.reduction("sums", planes.count(), planes.size, buffers, &[param("eps", self.eps)]))
    }
}

/// dx. Inputs: dy, x, mean, variance, weight, and the sums of [`PlaneSums`].
pub(super) struct InputGradient {
    pub planes: Planes,
    pub eps: f32,
    /// Whether the statistics depend on x.
    pub of_x: bool,
}

impl Kernel for InputGradient {
    fn name(&self) -> &'static str {
        "batch_norm_backward"
    }

    fn output_specs(&self, inputs: &[&Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[1].clone()])
    }

    fn cost(&self, inputs: &[&Spec], outputs: &[&Spec]) -> Cost {
        streaming_cost(7 * inputs[0].shape.elements(), inputs, outputs)
    }

    fn cpu(&self, inputs: &[View], outputs: &mut [ViewMut]) {
        let planes = self.planes;
        let [dy, x, mean, variance, weight, sums] = [0, 1, 2, 3, 4, 5].map(|i| inputs[i].f32());
        let (channels, size) = (planes.channels, planes.size);
        // Of each set the averages of g n and of g.
        with_scratch(2 * planes.sets(), |averages| {
            averages.par_chunks_mut(2).enumerate().for_each(|(set, averages)| {
                averages.fill(0.0);
                for plane in planes.planes(set).take_while(|_| self.of_x) {
                    let (n, channel) = (plane / channels, plane % channels);
                    for (i, average) in averages.iter_mut().enumerate() {
                        *average += weight[channel] * sums[(2 * n + i) * channels + channel];
                    }
                }
                averages.iter_mut().for_each(|average| *average *= planes.per_element());
            });
            let averages = &*averages;
            let rows = outputs[0].f32().par_chunks_mut(size).zip(dy.par_chunks(size)).zip(x.par_chunks(size));
            rows.enumerate().with_min_len((CHUNK / size).max(1)).for_each(|(plane, ((dx, dy), x))| {
                let set = planes.set(plane);
                let (mean, rstd, weight) =
                    (mean[set], 1.0 / (variance[set] + self.eps).sqrt(), weight[plane % channels]);
                let (mean_gn, mean_g) = (averages[2 * set], averages[2 * set + 1]);
                vectorized(
                    #[inline(always)]
                    || {
                        for ((dx, dy), x) in dx.iter_mut().zip(dy).zip(x) {
                            *dx = rstd * (dy * weight - mean_g - (x - mean) * rstd * mean_gn);
                        }
                    },
                );
            });
        });
    }

    fn gpu(&self, _: &[&Spec], _: &[&Spec], _: &Limits) -> Plan {
        let planes = &self.planes;
        let mut plan = Plan::default();
        let mut buffers = vec![
            planes.rows_of("grad_output", Operand::Input(0)),
            buffer("variance", "f32", Operand::Input(3)),
            buffer("weight", "f32", Operand::Input(4)),
            planes.rows_of("result", Operand::Output(0)),
        ];
        if self.of_x {
            let of_sets = vec![
                buffer("sums", "f32", Operand::Input(5)),
                buffer("weight", "f32", Operand::Input(4)),
                buffer("averages", "vec2<f32>", Operand::Scratch(0)),
            ];
            plan.scratch.push(8 * planes.sets());
            plan.launches.push(planes.reduction("averages", planes.sets(), planes.of_set().0, of_sets, &[]));
            buffers.extend([
                planes.rows_of("x", Operand::Input(1)),
                buffer("mean", "f32", Operand::Input(2)),
                buffer("averages", "vec2<f32>", Operand::ReadScratch(0)),
            ]);
        }
        let eps = [param("eps", self.eps)];
        plan.launches.push(planes.elementwise("input_gradient", self.of_x, buffers, &eps));
        plan
    }
}
