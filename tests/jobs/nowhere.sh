#!/bin/sh
echo ran
exit 4
