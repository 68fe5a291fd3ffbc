"""The tenant client, in three floors: doctor, rounds, program. No readable data leaves."""
