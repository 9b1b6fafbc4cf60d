//! CUDA's driver interface or HIP's, which has the same calls: imports memory and waits for streams.

use super::Vendor;
use super::library::{functions, open};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Context = *mut c_void;
pub(super) type RawStream = *mut c_void;
type External = *mut c_void;

functions! { Functions {
    init: fn(c_uint) -> c_int = "cuInit" | "hipInit";
    device_by_pci: fn(*mut c_int, *const c_char) -> c_int = "cuDeviceGetByPCIBusId" | "hipDeviceGetByPCIBusId";
    retain_context: fn(*mut Context, c_int) -> c_int = "cuDevicePrimaryCtxRetain" | "hipDevicePrimaryCtxRetain";
    set_context: fn(Context) -> c_int = "cuCtxSetCurrent" | "hipCtxSetCurrent";
    create_stream: fn(*mut RawStream, c_uint) -> c_int = "cuStreamCreate" | "hipStreamCreateWithFlags";
    query_stream: fn(RawStream) -> c_int = "cuStreamQuery" | "hipStreamQuery";
    destroy_stream: fn(RawStream) -> c_int = "cuStreamDestroy_v2" | "hipStreamDestroy";
    import: fn(*mut External, *const HandleDesc) -> c_int = "cuImportExternalMemory" | "hipImportExternalMemory";
    map: fn(*mut u64, External, *const BufferDesc) -> c_int
        = "cuExternalMemoryGetMappedBuffer" | "hipExternalMemoryGetMappedBuffer";
    free: fn(u64) -> c_int = "cuMemFree_v2" | "hipFree";
    destroy_external: fn(External) -> c_int = "cuDestroyExternalMemory" | "hipDestroyExternalMemory";
} }

/// A stream that does not wait for the default one.
const NON_BLOCKING: c_uint = 1;
const OPAQUE_FD: c_int = 1;
const NOT_READY: c_int = 600;

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC`
#[repr(C)]
struct HandleDesc {
    kind: c_int,
    handle: Handle,
    size: u64,
    flags: c_uint,
    reserved: [c_uint; 16],
}

/// A union with two pointers.
#[repr(C)]
union Handle {
    fd: c_int,
    pointers: [usize; 2],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`
#[repr(C)]
struct BufferDesc {
    offset: u64,
    size: u64,
    flags: c_uint,
    reserved: [c_uint; 16],
}

pub(super) struct Driver {
    calls: Functions,
    name: &'static str,
    /// The environment variable that names the cards which a process may see.
    hides_by: &'static str,
}

impl Driver {
    pub fn load(vendor: Vendor) -> Result<Driver, String> {
        let (name, hides_by, files): (_, _, &[&str]) = match vendor {
            Vendor::Nvidia => ("CUDA", "CUDA_VISIBLE_DEVICES", &["libcuda.so.1"]),
            Vendor::Amd => (
                "HIP",
                "HIP_VISIBLE_DEVICES",
                &["libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so"],
            ),
        };
        let (library, _) = open(&files.iter().map(PathBuf::from).collect::<Vec<_>>())?;
        let driver = Driver { calls: Functions::load(library, vendor)?, name, hides_by };
        // SAFETY: it takes no flags.
        driver.check("be initialized", unsafe { (driver.calls.init)(0) })?;
        Ok(driver)
    }

    fn check(&self, what: &str, status: c_int) -> Result<(), String> {
        if status == 0 { Ok(()) } else { Err(format!("{} cannot {what}: error {status}", self.name)) }
    }

    /// A stream of the card at this PCI address.
    pub fn stream(self: &Arc<Driver>, address: &str) -> Result<Stream, String> {
        let text = CString::new(address).map_err(|error| error.to_string())?;
        let (mut card, mut context, mut raw) = (0, null_mut(), null_mut());
        // SAFETY: each call writes to what is behind its first pointer.
        unsafe {
            let found = (self.calls.device_by_pci)(&raw mut card, text.as_ptr());
            self.check(&format!("find the card at {address} (is it hidden by {}?)", self.hides_by), found)?;
            self.check("open the card", (self.calls.retain_context)(&raw mut context, card))?;
            self.check("use the card", (self.calls.set_context)(context))?;
            self.check("create a stream", (self.calls.create_stream)(&raw mut raw, NON_BLOCKING))?;
        }
        Ok(Stream { driver: self.clone(), context, raw })
    }
}

/// A queue of a card's own interface, with the card's context, which is never released: it is the process's.
pub(super) struct Stream {
    driver: Arc<Driver>,
    context: Context,
    raw: RawStream,
}

// SAFETY: CUDA's and HIP's handles may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// Makes the card this thread's.
    pub fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is retained.
        self.driver.check("use the card", unsafe { (self.driver.calls.set_context)(self.context) })
    }

    pub fn raw(&self) -> RawStream {
        self.raw
    }

    /// Waits until the stream is done; `check` is asked meanwhile whether that can still be.
    pub fn wait(&self, timeout: Duration, check: impl Fn() -> Result<(), String>) -> Result<(), String> {
        let end = Instant::now() + timeout;
        loop {
            // SAFETY: the stream is this card's.
            match unsafe { (self.driver.calls.query_stream)(self.raw) } {
                NOT_READY => {}
                status => return self.driver.check("complete an all-gather", status),
            }
            check()?;
            if Instant::now() > end {
                return Err(format!("all-gather timed out after {} s (train.comm_timeout)", timeout.as_secs_f64()));
            }
            // An exchange takes a tenth of a millisecond to some; the thread has nothing else to do.
            std::thread::yield_now();
        }
    }

    /// Memory that another API has exported.
    pub fn import(&self, handle: OwnedFd, bytes: u64) -> Result<Memory, String> {
        self.enter()?;
        let (mut external, mut pointer) = (null_mut(), 0);
        let (mut of, reserved) = (Handle { pointers: [0; 2] }, [0; 16]);
        of.fd = handle.as_raw_fd();
        let desc = HandleDesc { kind: OPAQUE_FD, handle: of, size: bytes, flags: 0, reserved };
        let calls = &self.driver.calls;
        // SAFETY: the descriptions are as in the header.
        unsafe {
            self.driver.check("import memory", (calls.import)(&raw mut external, &raw const desc))?;
            // The import owns it now.
            std::mem::forget(handle);
            let desc = BufferDesc { offset: 0, size: bytes, flags: 0, reserved };
            let mapped = (calls.map)(&raw mut pointer, external, &raw const desc);
            let memory = Memory { driver: self.driver.clone(), context: self.context, external, pointer, bytes };
            self.driver.check("map memory", mapped).map(|()| memory)
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more. What fails leaks.
        unsafe {
            (self.driver.calls.set_context)(self.context);
            (self.driver.calls.destroy_stream)(self.raw);
        }
    }
}

/// Imported memory.
pub(super) struct Memory {
    driver: Arc<Driver>,
    context: Context,
    external: External,
    /// 0 if it could not be mapped.
    pub pointer: u64,
    pub bytes: u64,
}

// SAFETY: as of `Stream`.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        let calls = &self.driver.calls;
        // SAFETY: nobody uses it any more.
        unsafe {
            (calls.set_context)(self.context);
            if self.pointer != 0 {
                (calls.free)(self.pointer);
            }
            (calls.destroy_external)(self.external);
        }
    }
}
