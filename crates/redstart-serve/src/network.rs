//! Networks of the configuration: which addresses are a proxy's.

use std::{fmt, net::IpAddr};

use serde::{Deserialize, Deserializer, de::Error as _};

/// An address, or a network such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        const FORM: &str = "a network must be an address, or one with a prefix such as 10.0.0.0/8";
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| FORM)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.parse().map_err(|_| FORM)?,
            None => most,
        };
        if bits > most {
            return Err(FORM);
        }
        Ok(Self { address, bits })
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        // A socket that listens for IPv6 sees IPv4 clients as mapped addresses.
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differ = network.to_bits() ^ address.to_bits();
                differ.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differ = network.to_bits() ^ address.to_bits();
                differ.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(input)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_and_no_others() {
        let contains = |network: &str, address: &str| {
            let network = Network::parse(network).unwrap();
            network.contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.2", "10.0.0.2"));
        assert!(!contains("10.0.0.2", "10.0.0.3"));
        assert!(contains("10.0.0.0/8", "10.255.1.2"));
        assert!(!contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("0.0.0.0/0", "203.0.113.9"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!contains("2001:db8::/32", "2001:db9::1"));
        assert!(contains("::/0", "2001:db8::1"));
        for bad in [
            "",
            "10.0.0",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/x",
            "host",
        ] {
            assert!(Network::parse(bad).is_err(), "{bad}");
        }
    }
}
