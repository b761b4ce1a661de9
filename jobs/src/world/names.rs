//! The closed lists that every name, id and value of the world comes from.
//!
//! Each entry is one token of the bundled tokenizer.

/// People who buy, own and ask.
pub const PEOPLE: [&str; 48] = [
    "Alma", "Boris", "Cara", "Dario", "Elena", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Lars",
    "Mina", "Nils", "Olga", "Pablo", "Quinn", "Rosa", "Stefan", "Tara", "Uma", "Viktor", "Wanda", "Xenia",
    "Yusuf", "Zoe", "Amir", "Bella", "Cyrus", "Dora", "Emil", "Fatima", "Gavin", "Hana", "Igor", "Judith",
    "Kemal", "Lydia", "Milan", "Nora", "Omar", "Petra", "Rami", "Selma", "Tomas", "Vera", "Walter", "Yara",
];

/// Devices, which are called by animals.
pub const DEVICES: [&str; 48] = [
    "Falcon", "Heron", "Otter", "Badger", "Lynx", "Puma", "Raven", "Cobra", "Bison", "Moose", "Zebra",
    "Tapir", "Gecko", "Viper", "Shark", "Whale", "Squid", "Crane", "Stork", "Eagle", "Finch", "Robin",
    "Swan", "Koala", "Panda", "Lemur", "Hyena", "Jackal", "Coyote", "Ferret", "Weasel", "Beaver", "Marmot",
    "Hamster", "Rabbit", "Donkey", "Camel", "Llama", "Alpaca", "Buffalo", "Mustang", "Dolphin", "Walrus",
    "Penguin", "Pelican", "Toucan", "Parrot", "Osprey",
];

/// Tickets.
pub const TICKETS: [&str; 60] = [
    "T10", "T11", "T12", "T13", "T14", "T15", "T16", "T17", "T18", "T19", "T20", "T21", "T22", "T23", "T24",
    "T25", "T26", "T27", "T28", "T29", "T30", "T31", "T32", "T33", "T34", "T35", "T36", "T37", "T38", "T39",
    "T40", "T41", "T42", "T43", "T44", "T45", "T46", "T47", "T48", "T49", "T50", "T51", "T52", "T53", "T54",
    "T55", "T56", "T57", "T58", "T59", "T60", "T61", "T62", "T63", "T64", "T65", "T66", "T67", "T68", "T69",
];

/// Orders.
pub const ORDERS: [&str; 60] = [
    "O10", "O11", "O12", "O13", "O14", "O15", "O16", "O17", "O18", "O19", "O20", "O21", "O22", "O23", "O24",
    "O25", "O26", "O27", "O28", "O29", "O30", "O31", "O32", "O33", "O34", "O35", "O36", "O37", "O38", "O39",
    "O40", "O41", "O42", "O43", "O44", "O45", "O46", "O47", "O48", "O49", "O50", "O51", "O52", "O53", "O54",
    "O55", "O56", "O57", "O58", "O59", "O60", "O61", "O62", "O63", "O64", "O65", "O66", "O67", "O68", "O69",
];

/// Things an order is for.
pub const ITEMS: [&str; 8] =
    ["laptop", "monitor", "phone", "printer", "keyboard", "camera", "headset", "tablet"];

/// What a ticket can be about.
pub const TOPICS: [&str; 6] = ["delay", "damage", "price", "address", "warranty", "color"];

/// Teams of the company.
pub const TEAMS: [&str; 8] =
    ["network", "hardware", "security", "billing", "sales", "finance", "design", "legal"];

/// Prices of orders, in whole units of money.
pub const AMOUNTS: [u32; 17] = [10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90];

/// The largest amount that may be refunded.
pub const REFUND_LIMIT: u32 = 50;
