//! Process placement as set by a launcher such as `mpirun` or `srun`.

use crate::{Error, Result};

/// The placement of a process in a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// The number of this process, below `processes`.
    pub process: usize,
    pub processes: usize,
    /// Its index among the processes of its machine.
    pub local: usize,
    /// Processes per machine; the largest, if machines differ.
    pub on_machine: usize,
}

/// The variables that launchers set: number, count, number on the machine. Open MPI; MPICH and Intel MPI; Slurm, where
/// it starts MPI programs itself.
const LAUNCHERS: [[&str; 3]; 3] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    ["PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID"],
];

/// How many processes a launcher starts on a machine: Open MPI; MPICH and Intel MPI; Slurm, which counts for groups of
/// machines: "4(x2),3".
const ON_MACHINE: [&str; 4] =
    ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"];

impl Launch {
    /// The placement of this process; `None` without a launcher.
    ///
    /// # Errors
    /// If a launcher has started several processes, and this program was built without MPI.
    pub fn of_process() -> Result<Option<Launch>> {
        Launch::of(&|name| std::env::var(name).ok(), cfg!(feature = "mpi"))
    }

    fn of(variable: &dyn Fn(&str) -> Option<String>, has_mpi: bool) -> Result<Option<Launch>> {
        let number = |name| variable(name)?.trim().parse::<usize>().ok();
        let found = LAUNCHERS.iter().find_map(|[process, processes, local]| {
            let (process, processes) = (number(process)?, number(processes)?);
            // Where nothing is said, all are on one machine.
            let on_machine = ON_MACHINE.iter().find_map(|name| most(&variable(name)?)).unwrap_or(processes);
            let on_machine = on_machine.clamp(1, processes.max(1));
            Some(Launch { process, processes, local: number(local).unwrap_or(process), on_machine })
        });
        let Some(launch) = found.filter(|launch| launch.processes > 1) else { return Ok(None) };
        if !has_mpi {
            return Err(Error::Communication(format!(
                "a launcher has started {} processes, but this rustyflow was built without MPI: build it with \
                 `cargo build --release --features mpi`, or start one process",
                launch.processes
            )));
        }
        Ok(Some(launch))
    }
}

/// The largest of counts such as "4(x2),3".
fn most(counts: &str) -> Option<usize> {
    let count = |group: &str| group.split('(').next()?.trim().parse::<usize>().ok();
    counts.split(',').map(count).collect::<Option<Vec<_>>>()?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)], has_mpi: bool) -> Result<Option<Launch>> {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
        Launch::of(&variable, has_mpi)
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        let open_mpi =
            [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")];
        let launch = Launch { process: 3, processes: 4, local: 1, on_machine: 4 };
        assert_eq!(of(&open_mpi, true).unwrap(), Some(launch));
        let mpich = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        assert_eq!(of(&mpich, true).unwrap(), Some(Launch { process: 1, processes: 2, local: 1, on_machine: 2 }));
        let alone = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
        assert_eq!(of(&alone, false).unwrap(), None);
        assert_eq!(of(&[("SLURM_NTASKS", "4")], false).unwrap(), None, "a job of Slurm that is no MPI program");
    }

    #[test]
    fn launchers_say_how_many_processes_share_a_machine() {
        for (name, counts, on_machine) in [
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 2),
            ("MPI_LOCALNRANKS", "4", 4),
            ("SLURM_NTASKS_PER_NODE", "3", 3),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x2),3,1(x4)", 3),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x8)", 1),
            // Not more than there are; and what is no count says nothing.
            ("MPI_LOCALNRANKS", "16", 8),
            ("MPI_LOCALNRANKS", "many", 8),
        ] {
            let launch = of(&[("PMI_RANK", "1"), ("PMI_SIZE", "8"), (name, counts)], true).unwrap().unwrap();
            assert_eq!(launch.on_machine, on_machine, "{name}={counts}");
        }
    }

    #[test]
    fn several_processes_without_mpi_are_refused() {
        let error = of(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")], false).unwrap_err().to_string();
        assert!(error.contains("2 processes") && error.contains("--features mpi"), "{error}");
    }
}
