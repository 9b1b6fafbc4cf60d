//! Ranks that are processes of an MPI job.
//!
//! `MPI_SUM` has an unspecified order, so sums are computed here: each rank receives its slice of the values from all
//! ranks (all-to-all), adds it in rank order, and all ranks gather the slices. This transfers as many bytes as MPI's
//! reduction.
//!
//! If all ranks are on one machine, values go through shared memory (`shared_memory.rs`), and MPI only synchronizes the
//! ranks.
//!
//! Every call first gathers the announced calls of all ranks, which detects diverging ranks and exchanges lengths.
//!
//! All MPI operations are nonblocking and polled, so that a frozen rank ends the job after the timeout. MPI cannot
//! continue after the loss of a rank, so the job is then aborted.

use std::fmt::Display;
use std::io::Write;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::request::{Request, Scope};
use mpi::traits::{Communicator as _, CommunicatorCollectives, Destination, Root, Source};

use super::call::{Call, Kind};
use super::encoded::Reused;
use super::shared_memory::{NewFile, SharedMemory};
use super::{Communicator, Encoded, Memory, Sums, Wire};
use crate::{Error, Result};

/// Values that are summed at a time. It bounds the staging memory (two times 16 MiB and a slice) and keeps counts far
/// below the `i32` that MPI has for them.
const CHUNK: usize = 1 << 22;

/// Bytes of each rank in shared memory: at first and at most.
const SHARED_FROM: usize = 1 << 16;
const SHARED_MOST: usize = 1 << 24;

/// Bytes that are broadcast at a time, for the same reasons.
const BYTES: usize = 1 << 26;

/// A poll that finds nothing is followed by the next at once, for an answer takes a few microseconds; then by one after
/// other threads had their turn; and after 2 ms by one after a sleep, as then somebody is late and the processor is
/// better used by those who compute.
const SPINS: u32 = 64;
const YIELDS_FOR: Duration = Duration::from_millis(2);
const SLEEP: Duration = Duration::from_micros(50);

/// Calls by code.
const KINDS: [Kind; 6] =
    [Kind::AllReduceF32, Kind::AllReduceF16, Kind::Broadcast, Kind::AllGather, Kind::Gather, Kind::Barrier];

/// The rank of this process in the MPI job.
///
/// It belongs to the thread that created it, the only one from which MPI allows calls: calls from other threads fail,
/// and it must be dropped there too. (`Background::start` creates it on its thread.)
///
/// Dropping it finalizes MPI, which waits for all ranks. A rank that cannot continue must therefore
/// [`abort`](Communicator::abort); dropping it during a panic does that.
pub struct MpiComm {
    link: Link,
    failure: Option<String>,
    staging: Staging,
    /// Memory of results.
    memory: Reused,
    /// Where all ranks are on one machine, and it has memory for it.
    shares: bool,
    shared: Option<SharedMemory>,
}

/// The MPI world and timeout.
struct Link {
    /// Communicators hold raw handles and cannot change threads, but this can, and gives the world whenever asked.
    universe: Universe,
    thread: ThreadId,
    rank: usize,
    size: usize,
    local_rank: usize,
    timeout: Option<Duration>,
}

/// Memory of an all-reduce, kept from call to call.
#[derive(Default)]
struct Staging {
    /// This rank's values and then all sums, where they are not as many as slices of one length hold.
    whole: Vec<u8>,
    /// This rank's slice of every rank's values.
    slices: Vec<u8>,
    /// Its sums.
    sums: Vec<u8>,
}

impl MpiComm {
    /// Joins the job started by a launcher such as `mpirun`; without one, it is a job of one rank. MPI can be
    /// initialized once per process.
    ///
    /// If this rank waits for another for longer than `timeout`, the job ends; `None` waits without a limit.
    ///
    /// # Errors
    /// If MPI was initialized before, or does not support other threads beside the calling one.
    pub fn init(timeout: Option<Duration>) -> Result<MpiComm> {
        let (universe, threading) = mpi::initialize_with_threading(Threading::Funneled)
            .ok_or_else(|| Error::Communication("MPI can be initialized only once per process".to_string()))?;
        if threading < Threading::Funneled {
            return Err(Error::Communication("this MPI library does not support programs with threads".to_string()));
        }
        let world = universe.world();
        let (rank, size) = (index(world.rank()), index(world.size()));
        // Keyed by rank, so that the ranks of a host keep their order.
        let local = world.split_shared(world.rank());
        let (local_rank, on_this_machine) = (index(local.rank()), index(local.size()));
        let thread = std::thread::current().id();
        let link = Link { universe, thread, rank, size, local_rank, timeout };
        let shares = size > 1 && on_this_machine == size;
        let (staging, memory) = (Staging::default(), Reused::default());
        Ok(MpiComm { link, failure: None, staging, memory, shares, shared: None })
    }

    /// Before a call that may use shared memory.
    fn wait_for_place(&mut self) -> Result<()> {
        self.shared.as_mut().map_or(Ok(()), |shared| shared.wait_for_place(self.link.timeout))
    }

    /// The shared memory, for a call with at most `length` bytes per rank; `None` if there is none.
    fn shared(&mut self, length: usize) -> Option<&mut SharedMemory> {
        let chunk = length.next_power_of_two().clamp(SHARED_FROM, SHARED_MOST);
        if self.shares && self.shared.as_ref().is_none_or(|shared| shared.chunk() < chunk) {
            self.shared = None;
            match self.link.share_memory(chunk) {
                Ok(shared) => self.shared = Some(shared),
                Err(reason) => {
                    self.shares = false;
                    if self.link.rank == 0 {
                        tracing::warn!(
                            "processes of this machine exchange gradients by MPI messages, which is slower than \
                             shared memory: {reason}"
                        );
                    }
                }
            }
        }
        self.shared.as_mut()
    }

    /// The index of this rank on its host, for example to choose a GPU.
    pub fn local_rank(&self) -> usize {
        self.link.local_rank
    }

    /// Announces this call to all ranks and returns their lengths.
    fn agree(&mut self, call: Call) -> Result<Vec<usize>> {
        if let Some(reason) = &self.failure {
            return Err(Error::Communication(reason.clone()));
        }
        if std::thread::current().id() != self.link.thread {
            return Err(Error::Invalid("MPI can be used only in the thread that initialized it".to_string()));
        }
        let code = KINDS.iter().position(|kind| *kind == call.kind).unwrap_or(KINDS.len());
        let (own, mut all) = ([code as u64, call.length as u64], vec![[0_u64; 2]; self.link.size]);
        let flat = all.as_flattened_mut();
        let world = self.link.universe.world();
        mpi::request::scope(|scope| {
            self.link.complete(world.immediate_all_gather_into(scope, &own, flat), call.kind);
        });
        let calls: Option<Vec<Call>> = all
            .iter()
            .map(|&[code, length]| Some(Call { kind: *KINDS.get(code as usize)?, length: length as usize }))
            .collect();
        let disagreement = match &calls {
            Some(calls) => Call::disagreement(calls, |rank| format!("rank {rank}")),
            None => Some("the ranks do not run the same version of the program".to_string()),
        };
        match (disagreement, calls) {
            (None, Some(calls)) => Ok(calls.iter().map(|call| call.length).collect()),
            (reason, _) => Err(Error::Communication(self.failure.insert(reason.unwrap_or_default()).clone())),
        }
    }
}

impl Communicator for MpiComm {
    fn rank(&self) -> usize {
        self.link.rank
    }

    fn size(&self) -> usize {
        self.link.size
    }

    fn all_reduce(&mut self, values: Encoded) -> Result<Sums> {
        let (call, wire, values) = (Call::all_reduce(&values), values.wire(), values.memory());
        self.wait_for_place()?;
        self.agree(call)?;
        if self.shared(values.len()).is_some() {
            let MpiComm { link, shared: Some(shared), .. } = self else { unreachable!("it is there") };
            let sums = shared.all_reduce(&values, wire, link.timeout, &|| link.meet(call.kind))?;
            return Ok(Sums::new(wire, vec![sums]));
        }
        let chunk = CHUNK * wire.width();
        let sums = self.memory.filled(values.len(), |sums| {
            for (values, sums) in values.chunks(chunk).zip(sums.chunks_mut(chunk)) {
                self.link.all_reduce(values, sums, wire, call.kind, &mut self.staging);
            }
        });
        Ok(Sums::new(wire, vec![sums]))
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let kind = Kind::Broadcast;
        let lengths = self.agree(Call { kind, length: bytes.len() })?;
        bytes.resize(lengths[0], 0);
        self.link.share(0, bytes, kind);
        Ok(())
    }

    fn all_gather(&mut self, bytes: Memory) -> Result<Vec<Memory>> {
        let kind = Kind::AllGather;
        self.wait_for_place()?;
        let lengths = self.agree(Call { kind, length: bytes.len() })?;
        if self.shared(lengths.iter().copied().max().unwrap_or_default()).is_some() {
            let MpiComm { link, shared: Some(shared), .. } = self else { unreachable!("it is there") };
            return shared.all_gather(&bytes, &lengths, link.timeout, &|| link.meet(kind));
        }
        let shared = lengths.into_iter().enumerate().map(|(rank, length)| {
            self.memory.filled(length, |all| {
                if rank == self.link.rank {
                    all.copy_from_slice(&bytes);
                }
                self.link.share(rank, all, kind);
            })
        });
        Ok(shared.collect())
    }

    fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let kind = Kind::Gather;
        let lengths = self.agree(Call { kind, length: bytes.len() })?;
        if self.link.rank != 0 {
            self.link.send(bytes, kind);
            return Ok(Vec::new());
        }
        let mut all = vec![bytes.to_vec()];
        all.extend(lengths[1..].iter().map(|length| vec![0; *length]));
        for (rank, bytes) in all.iter_mut().enumerate().skip(1) {
            self.link.receive(rank, bytes, kind);
        }
        Ok(all)
    }

    fn barrier(&mut self) -> Result<()> {
        self.agree(Call { kind: Kind::Barrier, length: 0 }).map(drop)
    }

    /// Ends all processes of the job, this one as well.
    fn abort(&mut self, reason: &str) {
        self.link.end_job(format_args!("aborts the job: {reason}"));
    }
}

impl Drop for MpiComm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort("it panicked");
        }
    }
}

impl Link {
    /// The sums of encoded values over all ranks, which have as many.
    fn all_reduce(&self, values: &[u8], all: &mut [u8], wire: Wire, kind: Kind, staging: &mut Staging) {
        let Staging { whole, slices, sums } = staging;
        let world = self.universe.world();
        // All slices are of one length: what is past the values is never looked at.
        let slice = (values.len() / wire.width()).div_ceil(self.size) * wire.width();
        slices.resize(slice * self.size, 0);
        sums.resize(slice, 0);
        let is_even = slice * self.size == values.len();
        if !is_even {
            whole.resize(slice * self.size, 0);
            whole[..values.len()].copy_from_slice(values);
        }
        let own = if is_even { values } else { &whole[..] };
        mpi::request::scope(|scope| {
            self.complete(world.immediate_all_to_all_into(scope, own, &mut slices[..]), kind);
        });
        wire.sum(&slices.chunks_exact(slice).collect::<Vec<_>>(), sums);
        mpi::request::scope(|scope| {
            let into = if is_even { &mut all[..] } else { &mut whole[..] };
            self.complete(world.immediate_all_gather_into(scope, &sums[..], into), kind);
        });
        if !is_even {
            all.copy_from_slice(&whole[..values.len()]);
        }
    }

    /// Returns when all ranks have called it.
    fn meet(&self, kind: Kind) {
        self.complete(self.universe.world().immediate_barrier(), kind);
    }

    /// Memory for all ranks, which are on one machine; or on all of them why there is none.
    fn share_memory(&self, chunk: usize) -> std::result::Result<SharedMemory, String> {
        let file = (self.rank == 0).then(|| NewFile::new(self.size, chunk));
        let mut path = [0; 256];
        if let Some(Ok(file)) = &file {
            let name = file.path().as_os_str().as_encoded_bytes();
            path[..name.len().min(256)].copy_from_slice(&name[..name.len().min(256)]);
        }
        self.share(0, &mut path, Kind::Broadcast);
        let path = String::from_utf8_lossy(&path).trim_end_matches('\0').to_string();
        let opened = match &file {
            Some(Err(error)) => Err(error.to_string()),
            _ => SharedMemory::open(path.as_ref(), self.rank, self.size, chunk).map_err(|error| error.to_string()),
        };
        let (own, mut all) = ([u64::from(opened.is_ok())], vec![0_u64; self.size]);
        let world = self.universe.world();
        mpi::request::scope(|scope| {
            self.complete(world.immediate_all_gather_into(scope, &own, &mut all[..]), Kind::Broadcast);
        });
        if let Some(Ok(Err(error))) = file.map(|file| file.map(NewFile::remove)) {
            tracing::warn!("cannot remove the shared-memory file {path}: {error}");
        }
        match all.iter().position(|opened| *opened == 0) {
            Some(rank) => Err(opened.err().unwrap_or_else(|| format!("rank {rank} cannot open it"))),
            None => opened,
        }
    }

    /// Gives the bytes of `root` to all ranks, which have as many.
    fn share(&self, root: usize, bytes: &mut [u8], kind: Kind) {
        let world = self.universe.world();
        let root = world.process_at_rank(root as i32);
        for chunk in bytes.chunks_mut(BYTES) {
            mpi::request::scope(|scope| self.complete(root.immediate_broadcast_into(scope, chunk), kind));
        }
    }

    /// Sends bytes to rank 0, which [`receive`](Link::receive)s as many.
    fn send(&self, bytes: &[u8], kind: Kind) {
        let world = self.universe.world();
        let root = world.process_at_rank(0);
        for chunk in bytes.chunks(BYTES) {
            mpi::request::scope(|scope| self.complete(root.immediate_send(scope, chunk), kind));
        }
    }

    fn receive(&self, rank: usize, bytes: &mut [u8], kind: Kind) {
        let world = self.universe.world();
        let other = world.process_at_rank(rank as i32);
        for chunk in bytes.chunks_mut(BYTES) {
            mpi::request::scope(|scope| self.complete(other.immediate_receive_into(scope, chunk), kind));
        }
    }

    /// Waits until the operation is done, or ends the job when the time is up.
    fn complete<'a, D: ?Sized, S: Scope<'a>>(&self, mut request: Request<'a, D, S>, kind: Kind) {
        let start = Instant::now();
        let mut spins = SPINS;
        loop {
            match request.test() {
                Ok(_) => return,
                Err(unfinished) => request = unfinished,
            }
            if spins > 0 {
                spins -= 1;
                std::hint::spin_loop();
                continue;
            }
            let waited = start.elapsed();
            if let Some(timeout) = self.timeout.filter(|timeout| waited > *timeout) {
                let seconds = timeout.as_secs_f64();
                self.end_job(format_args!("no answer from the others for {seconds} s in {kind}"));
            }
            if waited < YIELDS_FOR {
                std::thread::yield_now();
            } else {
                std::thread::sleep(SLEEP);
            }
        }
    }

    fn end_job(&self, why: impl Display) -> ! {
        // In one piece, as other ranks may write too. Without a standard error there is nobody to tell.
        let line = format!("rank {}: {why}\n", self.rank);
        let _ = std::io::stderr().write_all(line.as_bytes());
        self.universe.world().abort(1)
    }
}

/// A rank or a count of MPI, which are never negative.
fn index(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}
