"""Exchanges about three things, as a user and an assistant have them: for what is to be told apart by meaning."""

from __future__ import annotations

TOPICS = {
    "trip": [
        (
            "Find flights from Berlin to Lisbon for the May trip.",
            "TAP and Ryanair fly direct from Berlin to Lisbon; the TAP flight costs 142 euros.",
        ),
        (
            "Which hotel in Lisbon is close to the old town?",
            "Hotel Mundial is next to the old town of Lisbon, 95 euros a night with breakfast.",
        ),
        (
            "How do we get from Lisbon airport to the hotel?",
            "The red metro line goes from Lisbon airport to the city, change at Alameda for the hotel.",
        ),
        (
            "Plan a day trip from Lisbon to Sintra.",
            "Take the train from Rossio to Sintra, see the Pena palace first, then walk to the Moorish castle.",
        ),
        (
            "Book the TAP flight to Lisbon for two.",
            "Two seats on the flight to Lisbon are booked, reservation code LX4P2Q.",
        ),
        (
            "What should we see in Lisbon on the first day of the trip?",
            "Start in Alfama, ride tram 28, and watch the sunset over Lisbon from the Miradouro da Graca.",
        ),
        (
            "Do we need travel insurance for the Lisbon trip?",
            "Your card covers flight and hotel cancellation, so no extra travel insurance is needed for Lisbon.",
        ),
        (
            "Which restaurants in Lisbon serve good fish?",
            "Cervejaria Ramiro in Lisbon is known for seafood; book a table for the trip a week before.",
        ),
    ],
    "database": [
        (
            "The Postgres query on the orders table is slow, why?",
            "The Postgres plan shows a sequential scan on orders: an index on customer_id is missing.",
        ),
        (
            "Add an index on customer_id to the orders table.",
            "Created the index orders_customer_idx in Postgres; the query now takes 12 ms.",
        ),
        (
            "How large is the orders table in Postgres now?",
            "The orders table has 48 million rows and takes 19 GB in Postgres, indexes included.",
        ),
        (
            "Partition the orders table by month.",
            "Postgres now partitions orders by month; old partitions of the table can be dropped at once.",
        ),
        (
            "Write a migration for the orders table schema.",
            "The migration adds the column shipped_at to the orders table in Postgres and fills it in batches.",
        ),
        (
            "Why does vacuum run so long on the Postgres database?",
            "Autovacuum waits for a long transaction on the orders table; the Postgres query was ended.",
        ),
        (
            "Set up a Postgres replica for reporting queries.",
            "The streaming replica of the Postgres database is up; reporting queries on orders go there.",
        ),
        (
            "Check the Postgres connection pool of the database.",
            "The pool of Postgres connections was exhausted by idle queries; its size is now 40.",
        ),
    ],
    "garden": [
        (
            "When should I sow tomatoes in my garden?",
            "Sow tomato seeds indoors in March and plant the tomatoes out in the garden after the last frost.",
        ),
        (
            "The leaves of my tomato plants turn yellow.",
            "Yellow leaves on tomato plants mean too little nitrogen: give the plants compost or fertiliser.",
        ),
        (
            "How often should I water the vegetable garden?",
            "Water the vegetable garden deeply twice a week in the morning, tomatoes a little more.",
        ),
        (
            "Which plants grow well beside tomatoes?",
            "Basil and marigold grow well beside tomatoes and keep insects off the plants in the garden.",
        ),
        (
            "Slugs eat the lettuce in my garden, what helps?",
            "Copper tape around the beds and hand picking at night keep slugs off the garden lettuce.",
        ),
        (
            "Make a planting plan for the vegetable garden.",
            "The planting plan has tomatoes and basil in the south bed, lettuce in the north of the garden.",
        ),
        (
            "How do I make compost for the garden beds?",
            "Layer kitchen scraps and dry leaves for the compost, turn it monthly, feed the beds in spring.",
        ),
        (
            "Can I grow tomato plants in pots on the balcony?",
            "Yes, tomato plants grow in pots of 20 litres on a sunny balcony if you water and feed them.",
        ),
    ],
}
