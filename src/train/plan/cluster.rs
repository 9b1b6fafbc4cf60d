//! Estimates the speed of a run on several devices or machines from their network.
//!
//! ```text
//! compute(N)  = a step's work on 1/N of its sequences
//! exchange(N) = bytes (host + 2 (N - 1) / N / network) + latency          gradients, each rank sending and receiving
//! together    = compute + max(exchange - what backward hides of it, 0)    a step with an all-reduce
//! apart       = compute + exchange / H                                    train.sync_every = H
//! ```
//! `bytes` are those of what is trained, as `train.reduce_dtype` sends it. `host` is what a rank's machine takes to
//! copy and add a byte, measured; the network is what the user says of it. Backward is two thirds of the computation,
//! and hides the exchange of all buckets but the last; on a CPU nothing of what the host does, for it computes too.
//! What a switch or ranks that share a network card make of it is not in the model.

use super::run_plan::RunPlan;
use crate::config::{Config, WireDtype};
use crate::profile::Roofline;
use crate::train::step::ranks::{BUCKET, Share};
use crate::{Device, Result};
use serde::Serialize;

/// Of an exchange between processes: messages, and threads that wake up.
const LATENCY_SECONDS: f64 = 100e-6;

/// Steps between meetings that are planned with if the run has none.
const SYNC_EVERY: usize = 50;

/// Ranks and their network.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cluster {
    /// Largest number of ranks.
    pub ranks: usize,
    /// Full-duplex network bandwidth of a rank, bytes per second; `None` within one machine.
    pub network_bytes_per_s: Option<f64>,
    /// Host time per byte to copy it from the device and back, and to add it, seconds.
    pub host_seconds_per_byte: f64,
}

/// Estimates by number of ranks.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterPlan {
    pub cluster: Cluster,
    /// Bytes that a rank sends and receives in an exchange.
    pub exchanged_bytes: f64,
    /// Local steps between synchronizations.
    pub sync_every: usize,
    /// For 1, 2, 4 ranks and so on, as far as the sequences of a step can be divided.
    pub rows: Vec<ClusterRow>,
    /// Largest useful numbers of ranks, with an all-reduce and with local steps: up to there, doubling gives at least
    /// 1.3 times the speed.
    pub pays_to: [usize; 2],
}

#[derive(Debug, Clone, Serialize)]
pub struct ClusterRow {
    pub ranks: usize,
    /// Sequences per step on the rank with the most.
    pub sequences: usize,
    pub compute_ms: f64,
    /// With an all-reduce in each step.
    pub together: Speed,
    /// With `sync_every` local steps.
    pub apart: Speed,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Speed {
    pub ms_per_step: f64,
    pub tokens_per_s: f64,
    /// Time of a step in which a rank waits for the exchange.
    pub communication: f64,
}

impl RunPlan {
    /// The run on `cluster.ranks` ranks, and on fewer: at these peaks, or scaled from the time of the whole step that
    /// was estimated from an earlier run.
    ///
    /// # Errors
    /// If the sequences of a step cannot be divided among so many.
    pub fn on_cluster(
        &self,
        config: &Config,
        cluster: Cluster,
        device: &Device,
        peaks: Option<&Roofline>,
    ) -> Result<Option<ClusterPlan>> {
        Share::all(config, self.model.kind, cluster.ranks)?;
        let Some(time) = &self.time else { return Ok(None) };
        let counts = (0..).map(|power| 1 << power).take_while(|count| *count < cluster.ranks).chain([cluster.ranks]);
        let counts = counts.filter(|count| Share::all(config, self.model.kind, *count).is_ok()).collect::<Vec<usize>>();
        let mut rows = Vec::new();
        for &ranks in &counts {
            let shares = Share::all(config, self.model.kind, ranks)?;
            let most = shares.iter().max_by_key(|share| share.len()).expect("there is a rank");
            let part = most.len() as f64 / (config.train.batch_size * config.train.grad_accum_steps) as f64;
            let compute = match peaks {
                Some(peaks) if ranks > 1 => self.share_seconds(config, most, device, peaks)?,
                _ => time.ms_per_step / 1e3 * part,
            };
            rows.push((ranks, most.len(), compute));
        }
        let bytes = (self.trained_bytes(), self.updated_bytes());
        Ok(Some(plan(config, cluster, bytes, self.tokens_per_step, &rows, !device.is_gpu())))
    }
}

/// Of so many bytes of f32 that are trained, and so many as which ranks give each other what they updated; `rows` are
/// the numbers of ranks, the sequences and the seconds in which one computes its part. On a CPU, `on_host`, the host's
/// part of the exchange is not hidden.
fn plan(
    config: &Config,
    cluster: Cluster,
    (bytes, updated): (f64, f64),
    tokens: usize,
    rows: &[(usize, usize, f64)],
    on_host: bool,
) -> ClusterPlan {
    let train = &config.train;
    let sent = if train.reduce_dtype == WireDtype::F16 { bytes / 2.0 } else { bytes };
    let buckets = (bytes / (size_of::<f32>() * BUCKET) as f64).ceil().max(1.0);
    let sync_every = if train.sync_every > 0 { train.sync_every } else { SYNC_EVERY };
    let speed = |compute: f64, waiting: f64| Speed {
        ms_per_step: 1e3 * (compute + waiting),
        tokens_per_s: tokens as f64 / (compute + waiting),
        communication: waiting / (compute + waiting),
    };
    let rows = rows.iter().map(|&(ranks, sequences, compute)| {
        let others = (ranks - 1) as f64 / ranks as f64;
        let wire = |bytes: f64, ways: f64| cluster.network_bytes_per_s.map_or(0.0, |rate| ways * bytes * others / rate);
        // On the host bytes are f32 again.
        let host = bytes * cluster.host_seconds_per_byte;
        let (mut waiting, mut meeting) = (0.0, 0.0);
        if ranks > 1 {
            let exchange = wire(sent, 2.0) + LATENCY_SECONDS * buckets;
            let last = (exchange + host) / buckets;
            let hidden = if on_host { exchange } else { exchange + host };
            waiting = (hidden - hidden / buckets - compute * 2.0 / 3.0).max(0.0) + last;
            if on_host {
                waiting += host - host / buckets;
            }
            if train.shard_optimizer {
                waiting += wire(updated, 1.0) + LATENCY_SECONDS;
            }
            meeting = (exchange + host) / sync_every as f64;
        }
        let (together, apart) = (speed(compute, waiting), speed(compute, meeting));
        ClusterRow { ranks, sequences, compute_ms: 1e3 * compute, together, apart }
    });
    let rows: Vec<ClusterRow> = rows.collect();
    let pays_to = [|row: &ClusterRow| row.together.tokens_per_s, |row: &ClusterRow| row.apart.tokens_per_s]
        .map(|speed| pays_to(&rows, speed));
    ClusterPlan { cluster, exchanged_bytes: sent * 2.0, sync_every, rows, pays_to }
}

/// Up to how many ranks twice as many are at least 1.3 times as fast; for other factors by the same exponent.
fn pays_to(rows: &[ClusterRow], speed: impl Fn(&ClusterRow) -> f64) -> usize {
    let exponent = 1.3_f64.log2();
    let pays = |pair: &&[ClusterRow]| {
        let (more, faster) = (pair[1].ranks as f64 / pair[0].ranks as f64, speed(&pair[1]) / speed(&pair[0]));
        faster >= more.powf(exponent)
    };
    rows.windows(2).take_while(pays).last().map_or(1, |pair| pair[1].ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(network_bytes_per_s: Option<f64>) -> Cluster {
        Cluster { ranks: 64, network_bytes_per_s, host_seconds_per_byte: 1e-10 }
    }

    fn halved(most: usize) -> Vec<(usize, usize, f64)> {
        (0..).map(|i| 1 << i).take_while(|ranks| *ranks <= most).map(|r| (r, 64 / r, 0.64 / r as f64)).collect()
    }

    /// 496 MB over 3.125 GB/s take 159 ms one way in two of them: hidden behind 427 ms of backward on one rank, and not
    /// behind the 7 ms of 64.
    #[test]
    fn an_exchange_is_hidden_until_ranks_compute_too_little() {
        let config = Config::default();
        let plan = plan(&config, cluster(Some(25e9 / 8.0)), (496e6, 496e6), 65536, &halved(64), false);
        let [one, two, .., many] = &plan.rows[..] else { panic!() };
        assert_eq!((one.together.ms_per_step, one.together.communication), (640.0, 0.0));
        // Of two ranks half of the bytes pass twice: 159 ms, and 50 on the host, of which backward hides all but the
        // last of 30 buckets.
        let last = (0.496 / 3.125 + 0.0496 + 30.0 * 1e-4) / 30.0;
        assert!((two.together.ms_per_step / 1e3 - 0.32 - last).abs() < 1e-6, "{two:?}");
        let exchange = 2.0 * 0.496 * 63.0 / 64.0 / 3.125 + 0.0496 + 30.0 * 1e-4;
        let waiting = exchange - 0.01 * 2.0 / 3.0;
        assert!((many.together.ms_per_step / 1e3 - 0.01 - waiting).abs() < 1e-6, "{many:?}");
        assert!((many.apart.ms_per_step / 1e3 - 0.01 - exchange / 50.0).abs() < 1e-6, "{many:?}");
        assert!(plan.pays_to[0] < plan.pays_to[1] && plan.pays_to[0] >= 2, "{:?}", plan.pays_to);
    }

    #[test]
    fn a_cpu_hides_the_network_and_not_its_own_work() {
        let config = Config::default();
        let of =
            |on_host| plan(&config, cluster(Some(1e10)), (320e6, 320e6), 65536, &halved(2), on_host).rows[1].clone();
        let (gpu, cpu) = (of(false).together, of(true).together);
        assert!(cpu.ms_per_step - gpu.ms_per_step > 25.0, "{cpu:?} {gpu:?}");
    }

    #[test]
    fn half_of_the_bytes_and_divided_moments_change_what_is_sent() {
        let mut config = Config::default();
        let of = |config: &Config| plan(config, cluster(Some(1e8)), (320e6, 320e6), 65536, &halved(4), false);
        let f32 = of(&config);
        config.train.reduce_dtype = WireDtype::F16;
        let f16 = of(&config);
        assert_eq!(f16.exchanged_bytes * 2.0, f32.exchanged_bytes);
        assert!(f16.rows[2].together.ms_per_step < 0.6 * f32.rows[2].together.ms_per_step);
        config.train.shard_optimizer = true;
        let more = of(&config).rows[2].together.ms_per_step - f16.rows[2].together.ms_per_step;
        assert!((more - 1e3 * (3.2 * 0.75 + 1e-4)).abs() < 1e-3, "{more}");
        // As f16, half of it.
        let as_f16 = plan(&config, cluster(Some(1e8)), (320e6, 160e6), 65536, &halved(4), false);
        let more = as_f16.rows[2].together.ms_per_step - f16.rows[2].together.ms_per_step;
        assert!((more - 1e3 * (1.6 * 0.75 + 1e-4)).abs() < 1e-3, "{more}");
    }
}
