//! What is measured: which limits, whose requests, and who is asked to.

use std::fmt;

use crate::contenders::Contender;
use crate::load::{Answers, Callers};
use crate::options::Options;
use crate::tools::Tools;

/// What stands on the route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Limits {
    /// Nothing.
    None,
    /// So many policies counted in the process, that deny nothing.
    Local(usize),
    /// So many counted in Valkey, that deny nothing.
    Shared(usize),
    /// One in the process that denies all.
    DeniedLocal,
    /// One in Valkey that denies all.
    DeniedShared,
}

impl Limits {
    /// How many policies there are.
    pub(crate) fn count(self) -> usize {
        match self {
            Self::None => 0,
            Self::Local(count) | Self::Shared(count) => count,
            Self::DeniedLocal | Self::DeniedShared => 1,
        }
    }

    pub(crate) fn are_shared(self) -> bool {
        matches!(self, Self::Shared(_) | Self::DeniedShared)
    }

    pub(crate) fn deny(self) -> bool {
        matches!(self, Self::DeniedLocal | Self::DeniedShared)
    }
}

/// A contender at a task.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Job {
    pub(crate) limits: Limits,
    pub(crate) callers: Callers,
    pub(crate) contender: Contender,
}

impl Job {
    /// The task's name.
    pub(crate) fn task(self) -> String {
        let many = match self.callers {
            Callers::One => "",
            Callers::Many => "-many",
        };
        match self.limits {
            Limits::None => "plain".to_owned(),
            Limits::Local(count) => format!("local-{count}{many}"),
            Limits::Shared(count) => format!("shared-{count}{many}"),
            Limits::DeniedLocal => format!("denied-local{many}"),
            Limits::DeniedShared => format!("denied-shared{many}"),
        }
    }

    /// The task in words.
    pub(crate) fn title(self) -> String {
        let policies = |count| {
            if count == 1 {
                "one policy".to_owned()
            } else {
                "three policies".to_owned()
            }
        };
        let keys = match self.callers {
            Callers::One => "one key",
            Callers::Many => "1,000 keys",
        };
        match self.limits {
            Limits::None => "No policies".to_owned(),
            Limits::Local(count) => format!("In process: {}, all allowed", policies(count)),
            Limits::Shared(count) => {
                format!("Shared: {}, {keys}, all allowed", policies(count))
            }
            Limits::DeniedLocal => "In process: all denied".to_owned(),
            Limits::DeniedShared => "Shared: all denied".to_owned(),
        }
    }

    /// Whether an aim asks for it: those run one after the other, so that the machine changes little between them.
    fn is_aimed_at(self) -> bool {
        match self.contender {
            Contender::Tollgate | Contender::Pingora | Contender::NginxLua => true,
            Contender::Nginx => self.limits == Limits::DeniedLocal,
            Contender::Haproxy | Contender::Envoy => false,
        }
    }

    /// Whether these are the answers that it asks for.
    pub(crate) fn is_about(self, answers: &Answers) -> bool {
        // What a start or an end may spoil: the first request of a limit of one, an answer that came too late.
        let few = 5 + answers.requests / 1000;
        let unexpected = if self.limits.deny() {
            answers.requests - answers.refused
        } else {
            answers.refused
        };
        answers.requests > 0 && unexpected + answers.failed <= few
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.task(), self.contender.name())
    }
}

/// All that the options ask for and the tools allow, in the order in which it is measured.
pub(crate) fn of(options: &Options, tools: &Tools) -> Vec<Job> {
    let tasks = [
        (Limits::None, Callers::One),
        (Limits::Local(1), Callers::One),
        (Limits::Local(3), Callers::One),
        (Limits::Shared(1), Callers::One),
        (Limits::Shared(1), Callers::Many),
        (Limits::Shared(3), Callers::One),
        (Limits::Shared(3), Callers::Many),
        (Limits::DeniedLocal, Callers::One),
        (Limits::DeniedShared, Callers::One),
    ];
    let wanted = |names: &[String], name: &str| {
        names.is_empty() || names.iter().any(|wanted| wanted == name)
    };
    let mut jobs: Vec<_> = tasks
        .iter()
        .flat_map(|&(limits, callers)| {
            Contender::ALL.map(|contender| Job {
                limits,
                callers,
                contender,
            })
        })
        .filter(|job| job.contender.can(job.limits) && job.contender.is_there(tools))
        .filter(|job| wanted(&options.only, job.contender.name()))
        .filter(|job| wanted(&options.tasks, &job.task()))
        .collect();
    jobs.sort_by_key(|job| !job.is_aimed_at());
    jobs
}
