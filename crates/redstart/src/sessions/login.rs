use super::Token;

/// The longest label, in bytes.
const MAX_LABEL: usize = 256;

/// Who logs in, and how: for [`Sessions::login`](super::Sessions::login).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redstart::Result<()> {
/// # use redstart::{Store, sessions::{Login, Sessions}};
/// # let store = Store::connect("memory://").await?;
/// let sessions = Sessions::new(&store, "shop", "web")?;
/// let visitor = sessions.create_anonymous(&serde_json::json!({ "cart": [7] })).await?;
///
/// let login = Login::new("ann").label("Firefox on Linux").remember().replacing(&visitor);
/// let token = sessions.login(login, &()).await?;
///
/// let session = sessions.load::<serde_json::Value>(&token).await?.unwrap();
/// assert_eq!(session.data["cart"][0], 7);
/// assert!(session.remembered);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a login does nothing until it is passed to `Sessions::login`"]
pub struct Login {
    pub(super) user: String,
    pub(super) label: String,
    pub(super) remember: bool,
    pub(super) replaces: Option<Token>,
}

impl Login {
    /// A login of this user, who has proven who they are.
    pub fn new(user: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            label: String::new(),
            remember: false,
            replaces: None,
        }
    }

    /// What the list of sessions calls this one, such as the name of the device. Cut to 256 bytes.
    pub fn label(mut self, label: &str) -> Self {
        self.label = label[..label.floor_char_boundary(MAX_LABEL)].to_owned();
        self
    }

    /// "Remember me": the session lives as long as [`remember`](super::SessionsBuilder::remember) says, used or not.
    pub fn remember(mut self) -> Self {
        self.remember = true;
        self
    }

    /// Ends the session that the user had before the login. The fields of an anonymous session, or of an earlier one
    /// of the same user, move to the new session; those of another user do not.
    pub fn replacing(mut self, old: &Token) -> Self {
        self.replaces = Some(old.clone());
        self
    }

    /// Whether it is remembered.
    pub fn is_remembered(&self) -> bool {
        self.remember
    }
}

impl From<&str> for Login {
    fn from(user: &str) -> Self {
        Self::new(user)
    }
}

impl From<&String> for Login {
    fn from(user: &String) -> Self {
        Self::new(user)
    }
}
