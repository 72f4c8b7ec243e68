//! Where the replies of a batch go: to a caller in process, or to a socket as bytes.

use super::listener::Allowed;
use crate::{
    client::{Answers, Client, Inbox, Pushed},
    config::Config,
    reply::Reply,
    resp,
};

/// Where the replies of a batch go.
pub(super) trait Replies {
    /// Called once, with the lock held, before the first command.
    fn begin(&mut self, _: &Client, _: &Config) {}
    /// The batch ends: there is no room for more replies.
    fn is_full(&self) -> bool {
        false
    }
    /// The batch ends with a command that ends the client.
    fn ends_with_client(&self) -> bool {
        false
    }
    fn take(&mut self, client: &Client, reply: Reply);
    /// As [`Replies::take`] while the state is held: messages stay where they are, since it is not known what they depend on.
    fn take_alone(&mut self, client: &Client, reply: Reply) {
        self.take(client, reply);
    }
    /// Where a command may write its reply itself.
    fn output(&mut self) -> Option<&mut Vec<u8>> {
        None
    }
    /// A command did so.
    fn wrote(&mut self, _: &Client) {}
    /// How many bytes there are, if they go to a client of a listener.
    fn bytes(&self) -> Option<usize> {
        None
    }
}

impl Replies for Vec<Reply> {
    fn take(&mut self, _: &Client, reply: Reply) {
        self.push(reply);
    }
}

/// Room for one reply.
#[derive(Default)]
pub(super) struct One(pub(super) Option<Reply>);

impl Replies for One {
    fn take(&mut self, _: &Client, reply: Reply) {
        self.0 = Some(reply);
    }
}

/// Replies as bytes for a socket, with what is pushed meanwhile where Redis puts it.
pub(crate) struct Wire<'a> {
    /// A message that comes before those in the inbox.
    pub(crate) unsettled: &'a mut Option<Pushed>,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) out: &'a mut Vec<u8>,
    /// How many bytes are enough.
    pub(crate) enough: usize,
    pub(crate) allowed: &'a mut Allowed,
    /// Set if something of others was written that tells of the data.
    pub(crate) told: &'a mut bool,
}

impl Replies for Wire<'_> {
    fn begin(&mut self, client: &Client, config: &Config) {
        *self.allowed = Allowed::by(config);
        // What others have sent so far comes before what these commands answer.
        while self.out.len() < self.enough
            && let Some(pushed) = self.unsettled.take().or_else(|| self.inbox.try_recv())
        {
            *self.told |= !pushed.free;
            answer(client, &pushed.reply, self.out);
        }
    }

    fn is_full(&self) -> bool {
        self.out.len() >= self.enough
    }

    fn ends_with_client(&self) -> bool {
        true
    }

    fn take(&mut self, client: &Client, reply: Reply) {
        let mut late: Vec<Pushed> = Vec::new();
        while let Some(pushed) = self.inbox.try_recv() {
            *self.told |= !pushed.free;
            if pushed.late {
                late.push(pushed);
            } else {
                answer(client, &pushed.reply, self.out);
            }
        }
        answer(client, &reply, self.out);
        for pushed in late {
            answer(client, &pushed.reply, self.out);
        }
    }

    fn take_alone(&mut self, client: &Client, reply: Reply) {
        answer(client, &reply, self.out);
    }

    #[inline]
    fn output(&mut self) -> Option<&mut Vec<u8>> {
        Some(self.out)
    }

    #[inline]
    fn bytes(&self) -> Option<usize> {
        Some(self.out.len())
    }

    /// The client gets no messages that it causes itself; all others may as well come behind.
    fn wrote(&mut self, client: &Client) {
        while let Some(pushed) = self.inbox.try_recv() {
            *self.told |= !pushed.free;
            answer(client, &pushed.reply, self.out);
        }
    }
}

/// Writes what a client is to see.
pub(super) fn answer(client: &Client, reply: &Reply, out: &mut Vec<u8>) {
    let wanted = client.answers == Answers::On || matches!(reply, Reply::Push(_));
    if wanted {
        resp::encode(reply, client.protocol, out);
    }
}
