//! NCCL's interface, which RCCL shares. Calls do not block: NCCL works on a thread of its own, and is asked how far it
//! is.

use super::Vendor;
use super::driver::RawStream;
use super::library::{functions, in_python, open};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const ID_BYTES: usize = 128;

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; ID_BYTES]);

type RawComm = *mut c_void;

functions! { Functions {
    version: fn(*mut c_int) -> c_int = "ncclGetVersion";
    unique_id: fn(*mut Id) -> c_int = "ncclGetUniqueId";
    join: fn(*mut RawComm, c_int, Id, c_int, *mut Config) -> c_int = "ncclCommInitRankConfig";
    all_gather: fn(*const c_void, *mut c_void, usize, c_int, RawComm, RawStream) -> c_int = "ncclAllGather";
    state: fn(RawComm, *mut c_int) -> c_int = "ncclCommGetAsyncError";
    describe: fn(c_int) -> *const c_char = "ncclGetErrorString";
    last_error: fn(RawComm) -> *const c_char = "ncclGetLastError";
    abort: fn(RawComm) -> c_int = "ncclCommAbort";
} }

const IN_PROGRESS: c_int = 7;
/// `ncclInt8`
const BYTES: c_int = 0;

/// `ncclConfig_t` as NCCL 2.14 has it; later versions read as much of it as its size says.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    fn without_blocking() -> Config {
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21400, blocking: 0 }
    }
}

pub(super) struct Nccl {
    calls: Functions,
    /// With its version and file.
    pub name: String,
}

impl Nccl {
    pub fn load(vendor: Vendor) -> Result<Nccl, String> {
        let (name, files) = match vendor {
            Vendor::Nvidia => ("NCCL", ["libnccl.so.2", "nvidia/nccl/lib/libnccl.so.2"]),
            Vendor::Amd => ("RCCL", ["librccl.so.1", "torch/lib/librccl.so"]),
        };
        let chosen = std::env::var_os("RUSTYFLOW_NCCL").map(PathBuf::from);
        let places = match &chosen {
            Some(path) => vec![path.clone()],
            None => [PathBuf::from(files[0])].into_iter().chain(in_python(files[1])).collect(),
        };
        let (library, file) = open(&places).map_err(|error| match chosen {
            Some(_) => format!("RUSTYFLOW_NCCL: {error}"),
            None => format!("{error}; RUSTYFLOW_NCCL=FILE names the library"),
        })?;
        let calls =
            Functions::load(library, vendor).map_err(|error| format!("{error}; NCCL 2.14 or later is needed"))?;
        let mut version = 0;
        // SAFETY: it writes the version.
        if unsafe { (calls.version)(&raw mut version) } != 0 {
            return Err(format!("{file}: ncclGetVersion failed"));
        }
        let name = format!("{name} {}.{}.{} ({file})", version / 10_000, version / 100 % 100, version % 100);
        Ok(Nccl { calls, name })
    }

    pub fn id(&self) -> Result<[u8; ID_BYTES], String> {
        let mut id = Id([0; ID_BYTES]);
        // SAFETY: it writes the id.
        self.check(None, unsafe { (self.calls.unique_id)(&raw mut id) })?;
        Ok(id.0)
    }

    /// Joins the group of this id with the card that is this thread's.
    pub fn join(
        self: &Arc<Nccl>,
        id: [u8; ID_BYTES],
        rank: usize,
        ranks: usize,
        timeout: Duration,
    ) -> Result<Group, String> {
        let (mut raw, mut config) = (null_mut(), Config::without_blocking());
        // SAFETY: it writes the handle, which is valid at once, and reads the rest.
        let status = unsafe { (self.calls.join)(&raw mut raw, ranks as c_int, Id(id), rank as c_int, &raw mut config) };
        if raw.is_null() {
            return self.check(None, status).and(Err("ncclCommInitRankConfig returned no communicator".into()));
        }
        let group = Group { nccl: self.clone(), raw, ranks };
        group.settle(status, timeout)?;
        Ok(group)
    }

    fn check(&self, comm: Option<RawComm>, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let text = |text: *const c_char| {
            // SAFETY: the library's texts end with a zero.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_string())
        };
        // SAFETY: it takes any status and no group at all.
        let (what, why) =
            unsafe { ((self.calls.describe)(status), (self.calls.last_error)(comm.unwrap_or(null_mut()))) };
        let parts = [text(what), text(why)].into_iter().flatten().filter(|text| !text.is_empty());
        Err(parts.collect::<Vec<_>>().join(": "))
    }
}

/// A rank of a group.
pub(super) struct Group {
    nccl: Arc<Nccl>,
    /// Null once it is aborted.
    raw: RawComm,
    pub ranks: usize,
}

// SAFETY: a group may be used from any thread, by one at a time.
unsafe impl Send for Group {}

impl Group {
    /// Waits until a call that gave this status is through.
    fn settle(&self, mut status: c_int, timeout: Duration) -> Result<(), String> {
        let end = Instant::now() + timeout;
        while status == IN_PROGRESS {
            if Instant::now() > end {
                return Err(format!("a call timed out after {} s (train.comm_timeout)", timeout.as_secs_f64()));
            }
            std::thread::sleep(Duration::from_micros(50));
            status = self.state();
        }
        self.nccl.check(Some(self.raw), status)
    }

    fn state(&self) -> c_int {
        let mut state = 0;
        // SAFETY: it writes the state.
        let status = unsafe { (self.nccl.calls.state)(self.raw, &raw mut state) };
        if status == 0 { state } else { status }
    }

    /// Whether what is under way can still end.
    pub fn check(&self) -> Result<(), String> {
        match self.state() {
            IN_PROGRESS => Ok(()),
            state => self.nccl.check(Some(self.raw), state),
        }
    }

    /// Starts to copy every rank's bytes to all.
    ///
    /// # Safety
    /// The memory is of the thread's card, large enough, and lasts until the stream is done.
    pub unsafe fn all_gather(
        &self,
        from: u64,
        to: u64,
        bytes: usize,
        stream: RawStream,
        timeout: Duration,
    ) -> Result<(), String> {
        if self.raw.is_null() {
            return Err("the group has ended".into());
        }
        let (from, to) = (from as *const c_void, to as *mut c_void);
        // SAFETY: as the caller promises.
        let status = unsafe { (self.nccl.calls.all_gather)(from, to, bytes, BYTES, self.raw, stream) };
        self.settle(status, timeout)
    }

    /// Ends the group, whatever is under way.
    pub fn abort(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: it is not used afterwards. It may fail, which changes nothing.
            unsafe { (self.nccl.calls.abort)(self.raw) };
            self.raw = null_mut();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // To end it in concert would wait for ranks that may be gone; nothing is under way.
        self.abort();
    }
}
