//! The API server: one Lease, what kubelets reported, one EndpointSlice, the configuration.

use hello_operator::core::election::mutation::{Mutation, active};
use hello_operator::core::election::{Register, Terms};

use super::adversary::Moment;
use super::world::{API, Event, World};

#[derive(Debug, Clone)]
pub enum Request {
    Get,
    Put {
        version: String,
        register: Box<Register>,
        unconditional: bool,
    },
    /// The EndpointSlice `-rw`: read and replaced, never over a higher term.
    Route {
        term: i64,
    },
}

#[derive(Debug, Clone)]
pub enum Reply {
    Read { version: String, register: Box<Register>, pods: Vec<PodStatus>, terms: Box<Terms> },
    Written { version: String, terms: Box<Terms>, running: Option<String> },
    Conflict,
}

/// What the Pod's status shows of its container; late, like everything that a kubelet reports.
#[derive(Debug, Clone, Default)]
pub struct PodStatus {
    pub running: Option<String>,
    pub terminated: Option<String>,
    pub absent: bool,
}

pub struct Api {
    pub register: Register,
    pub version: u64,
    pub down: bool,
    pub pods: Vec<PodStatus>,
    pub terms: Terms,
    /// Term on the EndpointSlice.
    pub routed: i64,
}

impl Api {
    pub fn new(register: Register, terms: &Terms) -> Self {
        Self { register, version: 1, down: false, pods: vec![PodStatus::default(); 5], terms: terms.clone(), routed: 0 }
    }

    pub fn kubelet(&mut self, node: usize, running: Option<String>, terminated: Option<String>) {
        let pod = &mut self.pods[node];
        pod.absent = false;
        pod.running = running;
        if terminated.is_some() {
            pod.terminated = terminated;
        }
    }

    /// Whether this start of an agent holds the Lease at this real moment.
    pub fn held_by(&self, holder: &str, term: i64) -> bool {
        !self.register.released() && self.register.holder == holder && self.register.term == term
    }
}

impl World {
    /// Sends a request to the API server. Its fate is decided here: it may be lost, late or doubled, and so may its answer.
    pub fn request(&mut self, from: usize, id: u64, request: Request) {
        self.after(1_500, 2_500, Event::RequestTimeout { to: from, id });
        if !self.reaches(from, API) || self.rng.chance(self.net.loss) {
            return;
        }
        let most = if self.rng.chance(self.net.late) { 8_000 } else { 15 + self.nodes[from].api_lag };
        if self.rng.chance(self.net.twice) {
            self.after(1, 6_000, Event::Request { from, id, request: request.clone() });
        }
        self.after(1, most, Event::Request { from, id, request });
    }

    pub fn on_request(&mut self, from: usize, id: u64, request: Request) {
        if self.api.down {
            return;
        }
        let reply = match request {
            Request::Get => Reply::Read {
                version: self.api.version.to_string(),
                register: Box::new(self.api.register.clone()),
                pods: self.api.pods.clone(),
                terms: Box::new(self.api.terms.clone()),
            },
            Request::Put { version, register, unconditional } => {
                if unconditional || version == self.api.version.to_string() {
                    let before = std::mem::replace(&mut self.api.register, *register);
                    self.api.version += 1;
                    self.note(|w| {
                        let r = &w.api.register;
                        format!(
                            "API    v{} holder={} term={} tl={} est={} released={:?} rules=[{}] end={}",
                            w.api.version,
                            r.holder,
                            r.term,
                            r.timeline,
                            r.established,
                            r.release,
                            r.rules
                                .iter()
                                .map(|r| format!("{} of {:?}", r.k, r.members))
                                .collect::<Vec<_>>()
                                .join("; "),
                            r.end.0,
                        )
                    });
                    self.check_register(&before);
                    let moment = if self.api.register.term > before.term {
                        Moment::Taken
                    } else if self.api.register.rules != before.rules {
                        Moment::Rules
                    } else {
                        Moment::Renewed
                    };
                    self.react(moment, from);
                    for node in 0..self.nodes.len() {
                        if self.rng.chance(50) {
                            let most = if self.rng.chance(20) { 20_000 } else { 300 };
                            let version = self.api.version.to_string();
                            self.after(1, most, Event::Watched { node, version });
                        }
                    }
                    Reply::Written {
                        version: self.api.version.to_string(),
                        terms: Box::new(self.api.terms.clone()),
                        running: self.api.pods[from].running.clone(),
                    }
                } else {
                    Reply::Conflict
                }
            }
            Request::Route { term } => {
                if term >= self.api.routed || active(Mutation::SliceOverwritten) {
                    self.check_route(term);
                    self.api.routed = term;
                }
                return;
            }
        };
        if !self.reaches(API, from) || self.rng.chance(self.net.loss) {
            return;
        }
        let most = if self.rng.chance(self.net.late) { 8_000 } else { 15 };
        self.after(1, most, Event::Answered { to: from, id, reply });
    }
}
